//! Determines the destination of a client's request: the shard, and the primary or a replica. The
//! destination depends on the session's commands, on hints in comments, and on the statement
//! itself, parsed with PostgreSQL's grammar.
//!
//! This crate does no I/O. [`RouteSession`] is a state machine for one client: the caller asks it
//! for a route before sending a request, and reports when a server is linked and released.
//! [`Router`] holds the [`RouteSettings`] of a database and the plans cached for its statements.
//!
//! Analyzing statements needs PostgreSQL's grammar, which the feature `grammar` compiles. Without
//! it, settings that depend on the contents of statements are refused
//! ([`SettingsError::AutoWithoutGrammar`]); commands and hints still select shards and roles.
//!
//! In doubt, the analysis is cautious, because a wrong shard would return a wrong result: a
//! statement that cannot be analyzed has no key, and a statement that may write counts as a write.
//!
//! ```
//! use std::sync::Arc;
//!
//! use howdah_route::{
//!     PinScope, RouteRole, RouteSession, RouteSettings, RoutedRequest, RoutedTable, Router, ShardTarget,
//! };
//! use howdah_route::shard::{KeyType, ShardMap};
//!
//! let orders = RoutedTable { schema: None, name: "orders".into(), key: vec!["customer".into()] };
//! let settings = RouteSettings {
//!     role: howdah_route::RolePreference::Auto,
//!     shards: 3,
//!     map: Some(ShardMap::hash(3, vec![KeyType::Int])?),
//!     tables: [orders].into_iter().collect(),
//!     ..RouteSettings::default()
//! };
//! settings.check()?;
//! let mut router = Router::new(Arc::new(settings), 1 << 20);
//! let mut session = RouteSession::new(PinScope::Transaction, 7);
//! let request = session.simple(&mut router, b"SELECT * FROM orders WHERE customer = 1234")?;
//! let RoutedRequest::Route(route) = request else { panic!("no command") };
//! assert_eq!((route.shards, route.role), (ShardTarget::One(0), RouteRole::Any));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Builds without the grammar still declare the types for analyzed statements.
#![cfg_attr(not(feature = "grammar"), allow(dead_code))]

#[cfg(feature = "grammar")]
mod analysis;
mod cache;
mod command;
mod copy;
mod dialect;
mod fan_out;
mod hint;
mod keys;
mod merge;
mod plan;
mod refusal;
mod role;
mod route;
mod router;
mod session;
mod settings;
pub mod shard;

pub use command::{CommandAnswer, RouteCommand};
pub use copy::{CopyFrom, CopyRowFormat, CopyRowSplitter, RowTarget};
pub use fan_out::{Aggregate, FanOut, SortColumn, SortKey};
pub use hint::HintNames;
pub use merge::{Merger, ShardRequest};
pub use refusal::{NoShardKey, Refusal};
pub use role::{PrimaryReason, RolePreference, RouteRole};
pub use route::{Route, ShardTarget};
pub use router::Router;
pub use session::{
    Parsed, PinScope, RouteSession, RoutedRequest, RoutedStatement, SessionOverrides,
};
pub use settings::{
    DefaultShard, FunctionLists, RouteSettings, RoutedTable, RoutedTables, SettingsError,
};

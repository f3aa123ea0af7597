//! Where a client's request goes: to which shard, and to the primary or a replica of it. Decided from what
//! the client has said (commands, hints in comments) and from the statement itself, by PostgreSQL's grammar.
//!
//! No connection is known here and nothing is sent. [`Session`] is a state machine for one client: it is asked
//! before a request goes out, and told when a server is linked and let go. [`Router`] holds what a database's
//! [`Settings`] say, and what has been learnt about its statements.
//!
//! Reading statements needs PostgreSQL's grammar, which the feature `grammar` compiles. Without it settings that
//! depend on what statements say are refused ([`SettingsError::AutoWithoutGrammar`]); the rest works the same.
//!
//! What is not understood has no key, and what may write is a write: a wrong shard would be a wrong answer.
//!
//! ```
//! use std::sync::Arc;
//!
//! use howdah_route::{PinScope, Request, Role, Router, Session, Settings, Shards, Table};
//! use howdah_shard::{KeyType, ShardMap};
//!
//! let orders = Table { schema: None, name: "orders".into(), key: vec!["customer".into()] };
//! let settings = Settings {
//!     role: howdah_route::RolePreference::Auto,
//!     shards: 3,
//!     map: Some(ShardMap::hash(3, vec![KeyType::Int])?),
//!     tables: [orders].into_iter().collect(),
//!     ..Settings::default()
//! };
//! settings.check()?;
//! let mut router = Router::new(Arc::new(settings), 1 << 20);
//! let mut session = Session::new(PinScope::Transaction, 7);
//! let request = session.simple(&mut router, b"SELECT * FROM orders WHERE customer = 1234")?;
//! let Request::Route(route) = request else { panic!("no command") };
//! assert_eq!((route.shards, route.role), (Shards::One(0), Role::Any));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// What statements are read into stays declared in a build that cannot read them.
#![cfg_attr(not(feature = "grammar"), allow(dead_code))]

#[cfg(feature = "grammar")]
mod analysis;
mod cache;
mod command;
mod copy;
mod dialect;
mod fan;
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

pub use command::{Answer, Command};
pub use copy::{CopyFormat, CopyFrom, CopyRows, RowPlace};
pub use fan::{Aggregate, FanOut, SortColumn, SortKey};
pub use hint::HintNames;
pub use merge::{Asked, Merger};
pub use refusal::{NoShardKey, Refusal};
pub use role::{Cause, Role, RolePreference};
pub use route::{Route, Shards};
pub use router::Router;
pub use session::{Parsed, PinScope, Request, Said, Session, Statement};
pub use settings::{DefaultShard, Functions, Settings, SettingsError, Table, Tables};

//! Options that map the roles and databases of a capture to those of a server.

use howdah_replay::{IdentityMap, Renaming};

/// How replayed sessions log in.
#[derive(Debug, clap::Args)]
pub(crate) struct IdentityArgs {
    /// Log in as NEW where the capture has OLD; repeatable
    #[arg(long, value_name = "OLD=NEW", value_delimiter = ',')]
    map_user: Vec<Renaming>,
    /// Connect to NEW where the capture has OLD; repeatable
    #[arg(long, value_name = "OLD=NEW", value_delimiter = ',')]
    map_database: Vec<Renaming>,
    /// Log in all sessions as this role
    #[arg(long, value_name = "ROLE")]
    as_user: Option<String>,
}

impl IdentityArgs {
    /// Returns the mapping that the options describe; it has no single database for all sessions.
    pub(crate) fn identity_map(&self) -> IdentityMap {
        let pairs = |renamings: &[Renaming]| {
            renamings.iter().map(|renaming| (renaming.from.clone(), renaming.to.clone())).collect()
        };
        IdentityMap {
            users: pairs(&self.map_user),
            databases: pairs(&self.map_database),
            as_user: self.as_user.clone(),
            as_database: None,
        }
    }
}

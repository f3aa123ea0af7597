//! The server that is replayed against, and how each session logs in to it.

use howdah_connect::{
    Endpoint, Target,
    tls::{self, SslNegotiation},
};
use howdah_net::Dialer;
use howdah_session::Login;

use crate::{identity::Identities, run::StartError};

/// Makes the login of each session.
#[derive(Debug)]
pub(crate) struct Logins {
    target: Target,
    endpoint: Endpoint,
    identities: Identities,
}

impl Logins {
    pub(crate) fn new(target: Target, endpoint: Endpoint, identities: Identities) -> Self {
        Self { target, endpoint, identities }
    }

    /// The login of a session captured with these names.
    pub(crate) fn login(&self, user: &str, database: &str, application: &str) -> Login {
        let mut target = self.target.clone();
        let user = self.identities.user(user);
        if !user.is_empty() {
            target = target.with_user(user);
        }
        let database = self.identities.database(database);
        if !database.is_empty() {
            target = target.with_database(database);
        }
        if !application.is_empty() {
            target = target.with_application_name(application);
        }
        target.login(&self.endpoint)
    }
}

/// A dialer for `endpoint`, with TLS if the first connection had it.
pub(crate) fn dialer(
    target: &Target,
    endpoint: &Endpoint,
    encrypted: bool,
) -> Result<Dialer, StartError> {
    let dialer = match endpoint {
        Endpoint::Unix { path } => return Ok(Dialer::unix(path)),
        Endpoint::Tcp { host, hostaddr, port } => {
            let address = hostaddr.map_or_else(|| host.clone(), |address| address.to_string());
            Dialer::tcp(&address, *port)?
        }
    };
    if !encrypted {
        return Ok(dialer);
    }
    let config = tls::client_config(target.tls())?;
    let name = tls::server_name(endpoint)?;
    Ok(dialer.with_tls(config, name, target.tls().negotiation == SslNegotiation::Direct))
}

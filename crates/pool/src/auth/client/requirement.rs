//! [`AuthRequirement`]: the authentication required of a client, according to the settings and its
//! origin.

use howdah_pool_config::{
    AuthMethod, CONSOLE_DATABASES, PassThrough,
    hba::{ClientCertificate, ClientOrigin, ConnectionInfo, Hba, HbaRefusal, RequiredAuth},
};

use super::{ClientRules, ClientTlsInfo, Replication};
use crate::auth::{Rejection, startup::StartupRequest};

/// The authentication required of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthRequirement {
    /// No authentication, or it was already done (by certificate, for example).
    None,
    /// No password, but the user must exist.
    KnownUser,
    /// A cleartext password.
    Plain,
    /// An md5 hash or SCRAM, depending on the stored secret.
    Md5,
    /// SCRAM-SHA-256, with or without channel binding.
    Scram,
    /// As [`AuthRequirement::Md5`] if the user's secret is known, otherwise a cleartext password
    /// that is checked at the server.
    PassThrough,
}

impl ClientRules {
    /// Whether the client runs as the OS user of the pooler and uses the console as user `howdah`,
    /// `pgbouncer` or `pgcat`. Such a client needs no password, because that OS user has full
    /// access to the process anyway. PgBouncer does the same for its user `pgbouncer`.
    pub(super) fn is_owner(&self, request: &StartupRequest, from: ClientOrigin) -> bool {
        let is_named = |name: &String| CONSOLE_DATABASES.contains(&name.as_str());
        let ClientOrigin::Unix { uid: Some(uid) } = from else { return false };
        is_named(&request.user) && is_named(&request.database) && self.owner == Some(uid)
    }

    /// Whether a user whose secret is not known is checked at the server.
    pub(super) fn passes_through(&self, requirement: AuthRequirement) -> bool {
        match requirement {
            AuthRequirement::PassThrough => true,
            AuthRequirement::Plain | AuthRequirement::Md5 | AuthRequirement::Scram => {
                self.config.auth.pass_through != PassThrough::Off
            }
            AuthRequirement::None | AuthRequirement::KnownUser => false,
        }
    }

    /// Determines how a client must authenticate, from the method or the HBA rules.
    pub(super) fn auth_requirement(
        &self,
        request: &StartupRequest,
        from: ClientOrigin,
        tls: Option<&ClientTlsInfo>,
    ) -> Result<AuthRequirement, Rejection> {
        if request.is_owner {
            return Ok(AuthRequirement::None);
        }
        let common_name = tls.and_then(|facts| facts.common_name.as_ref());
        match self.config.auth.method {
            AuthMethod::Any => Ok(AuthRequirement::None),
            AuthMethod::Trust => Ok(AuthRequirement::KnownUser),
            AuthMethod::Plain => Ok(AuthRequirement::Plain),
            AuthMethod::Md5 => Ok(AuthRequirement::Md5),
            AuthMethod::ScramSha256 => Ok(AuthRequirement::Scram),
            AuthMethod::Cert if common_name == Some(&request.user) => Ok(AuthRequirement::None),
            AuthMethod::Cert => Err(Rejection::Certificate(request.user.clone())),
            AuthMethod::Hba => match &self.config.auth.hba {
                Some(hba) => hba_requirement(hba, request, from, tls),
                None => Err(Rejection::NoRule(connection_text(request, from, tls.is_some()))),
            },
        }
    }
}

fn hba_requirement(
    hba: &Hba,
    request: &StartupRequest,
    from: ClientOrigin,
    tls: Option<&ClientTlsInfo>,
) -> Result<AuthRequirement, Rejection> {
    let verified = tls.filter(|facts| facts.has_certificate);
    let certificate =
        verified.map(|facts| ClientCertificate { common_name: facts.common_name.as_deref() });
    let connection = ConnectionInfo {
        user: &request.user,
        database: &request.database,
        is_physical: request.replication == Replication::Physical,
        from,
        is_tls: tls.is_some(),
        certificate,
    };
    let user = || request.user.clone();
    match hba.required_auth(&connection) {
        Ok(RequiredAuth::Trust) => Ok(AuthRequirement::KnownUser),
        Ok(RequiredAuth::Plain) => Ok(AuthRequirement::Plain),
        Ok(RequiredAuth::Md5) => Ok(AuthRequirement::Md5),
        Ok(RequiredAuth::ScramSha256) => Ok(AuthRequirement::Scram),
        Ok(RequiredAuth::PassThrough) => Ok(AuthRequirement::PassThrough),
        Ok(RequiredAuth::Verified) => Ok(AuthRequirement::None),
        Err(HbaRefusal::NoRule) => {
            Err(Rejection::NoRule(connection_text(request, from, tls.is_some())))
        }
        Err(HbaRefusal::Rejected) => {
            Err(Rejection::Rejected(connection_text(request, from, tls.is_some())))
        }
        Err(HbaRefusal::Certificate) => Err(Rejection::Certificate(user())),
        Err(HbaRefusal::Peer) => Err(Rejection::Peer(user())),
    }
}

/// Describes a connection with the wording of PostgreSQL's error for a missing pg_hba.conf entry.
fn connection_text(request: &StartupRequest, from: ClientOrigin, is_tls: bool) -> String {
    let host = match from {
        ClientOrigin::Unix { .. } => "[local]".to_owned(),
        ClientOrigin::Tcp(Some(address)) => address.to_canonical().to_string(),
        ClientOrigin::Tcp(None) => "???".to_owned(),
    };
    let StartupRequest { user, database, .. } = request;
    let encryption = if is_tls { "SSL encryption" } else { "no encryption" };
    match request.replication {
        Replication::Physical => {
            format!("replication connection from host \"{host}\", user \"{user}\", {encryption}")
        }
        _ => format!("host \"{host}\", user \"{user}\", database \"{database}\", {encryption}"),
    }
}

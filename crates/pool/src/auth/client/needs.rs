//! [`Needs`]: what a client has to prove, as the settings say for where it comes from.

use super::{ClientRules, Replication, TlsFacts};
use crate::{
    auth::{Rejection, startup::StartupRequest},
    config::{AuthMethod, CONSOLE_DATABASES},
    hba::{Certificate, ConnectionInfo, Hba, Origin, Refusal, RequiredAuth},
};

/// What a client has to prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing, or nothing more.
    Nothing,
    /// Nothing, but the name must be known.
    ToBeKnown,
    /// The password, as it is.
    Plain,
    /// An md5 of it, or by SCRAM, as the stored secret is.
    Md5,
    /// By SCRAM.
    Scram,
}

impl ClientRules {
    /// Whether a client is who runs this process, at the console: such a one needs no password, since
    /// it could as well read or change anything here. PgBouncer does the same.
    pub(super) fn is_owner(&self, wish: &StartupRequest, from: Origin) -> bool {
        let is_named = |name: &String| CONSOLE_DATABASES.contains(&name.as_str());
        let Origin::Unix { uid: Some(uid) } = from else { return false };
        is_named(&wish.user) && is_named(&wish.database) && self.owner == Some(uid)
    }

    /// What a client has to prove.
    pub(super) fn needs(
        &self,
        wish: &StartupRequest,
        from: Origin,
        tls: Option<&TlsFacts>,
    ) -> Result<Needs, Rejection> {
        if wish.is_owner {
            return Ok(Needs::Nothing);
        }
        let common_name = tls.and_then(|facts| facts.common_name.as_ref());
        match self.config.auth.method {
            AuthMethod::Any => Ok(Needs::Nothing),
            AuthMethod::Trust => Ok(Needs::ToBeKnown),
            AuthMethod::Plain => Ok(Needs::Plain),
            AuthMethod::Md5 => Ok(Needs::Md5),
            AuthMethod::ScramSha256 => Ok(Needs::Scram),
            AuthMethod::Cert if common_name == Some(&wish.user) => Ok(Needs::Nothing),
            AuthMethod::Cert => Err(Rejection::Certificate(wish.user.clone())),
            AuthMethod::Hba => match &self.config.auth.hba {
                Some(hba) => by_rules(hba, wish, from, tls),
                None => Err(Rejection::NoRule(describe(wish, from, tls.is_some()))),
            },
        }
    }
}

fn by_rules(
    hba: &Hba,
    wish: &StartupRequest,
    from: Origin,
    tls: Option<&TlsFacts>,
) -> Result<Needs, Rejection> {
    let shown = tls.filter(|facts| facts.has_certificate);
    let certificate = shown.map(|facts| Certificate { common_name: facts.common_name.as_deref() });
    let knock = ConnectionInfo {
        user: &wish.user,
        database: &wish.database,
        is_physical: wish.replication == Replication::Physical,
        from,
        is_tls: tls.is_some(),
        certificate,
    };
    let user = || wish.user.clone();
    match hba.judge(&knock) {
        Ok(RequiredAuth::Trust) => Ok(Needs::ToBeKnown),
        Ok(RequiredAuth::Plain) => Ok(Needs::Plain),
        Ok(RequiredAuth::Md5) => Ok(Needs::Md5),
        Ok(RequiredAuth::ScramSha256) => Ok(Needs::Scram),
        Ok(RequiredAuth::Proven) => Ok(Needs::Nothing),
        Err(Refusal::NoRule) => Err(Rejection::NoRule(describe(wish, from, tls.is_some()))),
        Err(Refusal::Rejected) => Err(Rejection::Rejected(describe(wish, from, tls.is_some()))),
        Err(Refusal::Certificate) => Err(Rejection::Certificate(user())),
        Err(Refusal::Peer) => Err(Rejection::Peer(user())),
    }
}

/// Who somebody is and where from, as PostgreSQL says it of those it has no rule for.
fn describe(wish: &StartupRequest, from: Origin, is_tls: bool) -> String {
    let host = match from {
        Origin::Unix { .. } => "[local]".to_owned(),
        Origin::Tcp(Some(address)) => address.to_canonical().to_string(),
        Origin::Tcp(None) => "???".to_owned(),
    };
    let StartupRequest { user, database, .. } = wish;
    let encryption = if is_tls { "SSL encryption" } else { "no encryption" };
    match wish.replication {
        Replication::Physical => {
            format!("replication connection from host \"{host}\", user \"{user}\", {encryption}")
        }
        _ => format!("host \"{host}\", user \"{user}\", database \"{database}\", {encryption}"),
    }
}

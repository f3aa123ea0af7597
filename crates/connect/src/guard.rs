//! Which proofs of identity a client will give: `require_auth` and `channel_binding=require`.
//!
//! A server, or who poses as one, chooses the method; without a guard it may choose to be told the
//! password. Source: PostgreSQL manual, "Parameter Key Words"; `check_expected_areq` in
//! `fe-auth.c`.

mod input;

pub use input::{GuardedInput, LoginFault};

use howdah_wire::backend::Authentication;

use crate::{
    resolve_error::ResolveError,
    settings::Settings,
    tls::{ChannelBinding, TlsSettings},
};

/// The methods that libpq has words for. `none` is a server that asks for nothing.
const METHODS: [&str; 7] = ["none", "password", "md5", "gss", "sspi", "scram-sha-256", "oauth"];

/// Watches what a server asks for during one login. Made by [`crate::Target::login_guard`].
///
/// Show it each authentication request *before* the request is answered; [`GuardedInput`] does so.
#[derive(Clone, Debug)]
pub struct AuthPolicy {
    /// One for each row of [`METHODS`].
    allowed: [bool; METHODS.len()],
    binding_required: bool,
    /// The client knows the certificate's hash, so it binds wherever the server offers that.
    binding_possible: bool,
    /// The server has asked for something, so its `Ok` is not the method `none`.
    asked: bool,
    binding_offered: bool,
    sasl_finished: bool,
}

/// What a server asked for is not what was agreed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoginRefused {
    /// `require_auth` does not name the method.
    #[error("the server asks for authentication by {method}, which require_auth does not allow")]
    Method {
        /// The method.
        method: &'static str,
    },
    /// The server lets us in without binding the login to the TLS connection.
    #[error("channel_binding=require, but the server does not bind the login to TLS")]
    NotBound,
}

impl AuthPolicy {
    pub(crate) fn resolve(settings: &Settings, tls: &TlsSettings) -> Result<Self, ResolveError> {
        let allowed = match settings.value("require_auth") {
            None => [true; METHODS.len()],
            Some(list) => parse_methods(list).ok_or_else(|| {
                let expected = "a list of methods (none, password, md5, gss, sspi, scram-sha-256, \
                                oauth), each once, and either all or none with \"!\" before it";
                settings.invalid("require_auth", list, expected)
            })?,
        };
        Ok(Self {
            allowed,
            binding_required: tls.channel_binding == ChannelBinding::Require,
            binding_possible: false,
            asked: false,
            binding_offered: false,
            sasl_finished: false,
        })
    }

    /// The guard of a client that can bind its login to TLS, or cannot.
    pub(crate) fn for_login(&self, binding_possible: bool) -> Self {
        Self { binding_possible, ..self.clone() }
    }

    /// Judges one request.
    ///
    /// # Errors
    ///
    /// It must not be answered: close the connection.
    pub fn check(&mut self, request: &Authentication<'_>) -> Result<(), LoginRefused> {
        match request {
            Authentication::Ok => {
                if !self.asked && !self.allows("none") {
                    return Err(LoginRefused::Method { method: "none" });
                }
                if self.binding_required && !(self.binding_offered && self.sasl_finished) {
                    return Err(LoginRefused::NotBound);
                }
                return Ok(());
            }
            Authentication::Sasl(mechanisms) => {
                self.binding_offered = mechanisms.clone().any(|name| name == b"SCRAM-SHA-256-PLUS");
                if self.binding_required && !(self.binding_offered && self.binding_possible) {
                    return Err(LoginRefused::NotBound);
                }
            }
            Authentication::SaslContinue(_) => {}
            Authentication::SaslFinal(_) => self.sasl_finished = true,
            _ if self.binding_required => return Err(LoginRefused::NotBound),
            _ => {}
        }
        self.asked = true;
        let method = method(request);
        if self.allows(method) { Ok(()) } else { Err(LoginRefused::Method { method }) }
    }

    fn allows(&self, method: &str) -> bool {
        METHODS.iter().position(|name| *name == method).is_none_or(|index| self.allowed[index])
    }
}

/// The word of [`METHODS`] for a request. No other SASL mechanism than SCRAM is answered anyway.
fn method(request: &Authentication<'_>) -> &'static str {
    match request {
        Authentication::Sasl(_)
        | Authentication::SaslContinue(_)
        | Authentication::SaslFinal(_) => "scram-sha-256",
        Authentication::GssContinue(_) => "gss",
        other => other.method(),
    }
}

fn parse_methods(list: &str) -> Option<[bool; METHODS.len()]> {
    let negative = list.starts_with('!');
    let mut named = [false; METHODS.len()];
    for word in list.split(',') {
        let name = if negative { word.strip_prefix('!')? } else { word };
        let index = METHODS.iter().position(|method| *method == name)?;
        if std::mem::replace(&mut named[index], true) {
            return None;
        }
    }
    Some(named.map(|named| named != negative))
}

#[cfg(test)]
mod tests {
    use howdah_wire::{
        Frame,
        backend::{Message, encode},
    };

    use super::*;
    use crate::settings::Origin;

    fn guard(require_auth: &str, binding: ChannelBinding) -> AuthPolicy {
        let mut settings = Settings::default();
        settings.set("require_auth", require_auth, Origin::Typed).unwrap();
        let tls = TlsSettings { channel_binding: binding, ..TlsSettings::default() };
        AuthPolicy::resolve(&settings, &tls).unwrap().for_login(true)
    }

    /// Shows the guard an offer of SASL mechanisms, in the server's own bytes.
    fn offer(guard: &mut AuthPolicy, mechanisms: &[&[u8]]) -> Result<(), LoginRefused> {
        let mut bytes = Vec::new();
        encode::authentication(&mut bytes, encode::AuthenticationRequest::Sasl(mechanisms))
            .unwrap();
        let (frame, _) = Frame::split(&bytes, 1000).unwrap().unwrap();
        let Message::Authentication(request) = Message::parse(frame).unwrap() else { panic!() };
        guard.check(&request)
    }

    #[test]
    fn only_the_methods_named_are_answered() {
        use Authentication::{CleartextPassword, Md5Password, Ok as Done};
        let md5 = Md5Password { salt: *b"salt" };
        let mut any = guard("", ChannelBinding::Prefer);
        assert_eq!(any.check(&CleartextPassword), Ok(()));
        let mut scram = guard("scram-sha-256", ChannelBinding::Prefer);
        assert_eq!(offer(&mut scram, &[b"SCRAM-SHA-256"]), Ok(()));
        assert_eq!(scram.check(&Done), Ok(()));
        let mut scram = guard("scram-sha-256", ChannelBinding::Prefer);
        let refused = Err(LoginRefused::Method { method: "password" });
        assert_eq!(scram.check(&CleartextPassword), refused);
        assert_eq!(scram.check(&md5), Err(LoginRefused::Method { method: "md5" }));
        let mut trusting = guard("scram-sha-256", ChannelBinding::Prefer);
        assert_eq!(trusting.check(&Done), Err(LoginRefused::Method { method: "none" }));
        let mut not_plain = guard("!password,!none", ChannelBinding::Prefer);
        assert_eq!(not_plain.check(&CleartextPassword), refused);
        assert_eq!(not_plain.check(&md5), Ok(()));
        assert_eq!(not_plain.check(&Done), Ok(()));
    }

    #[test]
    fn a_required_binding_is_not_given_up() {
        use Authentication::{CleartextPassword, Ok as Done, SaslContinue, SaslFinal};
        let new = || guard("", ChannelBinding::Require);
        assert_eq!(new().check(&CleartextPassword), Err(LoginRefused::NotBound));
        assert_eq!(new().check(&Done), Err(LoginRefused::NotBound));
        assert_eq!(offer(&mut new(), &[b"SCRAM-SHA-256"]), Err(LoginRefused::NotBound));
        let plus: &[&[u8]] = &[b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"];
        // A client without the certificate's hash would choose the one that does not bind.
        assert_eq!(offer(&mut new().for_login(false), plus), Err(LoginRefused::NotBound));
        let mut bound = new();
        assert_eq!(offer(&mut bound, plus), Ok(()));
        assert_eq!(bound.clone().check(&Done), Err(LoginRefused::NotBound));
        assert_eq!(bound.check(&SaslContinue(b"")), Ok(()));
        assert_eq!(bound.check(&SaslFinal(b"")), Ok(()));
        assert_eq!(bound.check(&Done), Ok(()));
    }

    #[test]
    fn a_list_of_methods_is_all_wanted_or_all_unwanted() {
        assert!(parse_methods("md5,password").is_some());
        assert!(parse_methods("!md5,!password").is_some());
        for list in ["md5,!password", "!md5,password", "md5,md5", "kerberos", "md5,", "!!md5"] {
            assert!(parse_methods(list).is_none(), "{list}");
        }
    }
}

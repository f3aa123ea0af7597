//! The authentication methods that a client accepts: `require_auth` and `channel_binding=require`.
//!
//! The server, or an impostor, chooses the method; without a policy it may request the password in
//! clear text. Source: PostgreSQL manual, "Parameter Key Words"; `check_expected_areq` in
//! `fe-auth.c`.

mod filter;

pub use filter::{AuthFilter, LoginError};

use howdah_wire::backend::Authentication;

use crate::{
    resolve_error::ResolveError,
    settings::KeywordValues,
    tls::{ChannelBindingMode, TlsSettings},
};

/// The methods that libpq has keywords for. `none` means that the server requests nothing.
const METHODS: [&str; 7] = ["none", "password", "md5", "gss", "sspi", "scram-sha-256", "oauth"];

/// Checks the authentication requests of a server during one login. Created by
/// [`crate::ConnectTarget::auth_policy`].
///
/// Call [`AuthPolicy::check`] for each request *before* it is answered; [`AuthFilter`] does so.
#[derive(Clone, Debug)]
pub struct AuthPolicy {
    /// Whether each method of [`METHODS`] is allowed.
    allowed: [bool; METHODS.len()],
    requires_binding: bool,
    /// Whether the client knows the hash of the server's certificate, and so uses channel binding
    /// whenever the server offers it.
    can_bind: bool,
    /// Whether the server has requested a method. If not, its AuthenticationOk counts as `none`.
    has_asked: bool,
    offered_binding: bool,
    sasl_finished: bool,
}

/// The reason why a server's authentication request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoginRefused {
    /// `require_auth` does not allow the method.
    #[error("the server uses authentication method {method}, which require_auth does not allow")]
    Method {
        /// Keyword of the method, as in `require_auth`.
        method: &'static str,
    },
    /// `channel_binding` is `require`, but the login cannot be bound, or the server accepted it
    /// before it was bound.
    #[error("the login does not use channel binding, but channel_binding is \"require\"")]
    NotBound,
}

impl AuthPolicy {
    pub(crate) fn resolve(
        settings: &KeywordValues,
        tls: &TlsSettings,
    ) -> Result<Self, ResolveError> {
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
            requires_binding: tls.channel_binding == ChannelBindingMode::Require,
            can_bind: false,
            has_asked: false,
            offered_binding: false,
            sasl_finished: false,
        })
    }

    /// Returns the policy for one login. `can_bind` is whether the client can use channel binding.
    pub(crate) fn for_login(&self, can_bind: bool) -> Self {
        Self { can_bind, ..self.clone() }
    }

    /// Checks one request.
    ///
    /// # Errors
    ///
    /// The policy does not allow the request, so it must not be answered: close the connection.
    pub fn check(&mut self, request: &Authentication<'_>) -> Result<(), LoginRefused> {
        match request {
            Authentication::Ok => {
                if !self.has_asked && !self.allows("none") {
                    return Err(LoginRefused::Method { method: "none" });
                }
                if self.requires_binding && !(self.offered_binding && self.sasl_finished) {
                    return Err(LoginRefused::NotBound);
                }
                return Ok(());
            }
            Authentication::Sasl(mechanisms) => {
                self.offered_binding = mechanisms.clone().any(|name| name == b"SCRAM-SHA-256-PLUS");
                if self.requires_binding && !(self.offered_binding && self.can_bind) {
                    return Err(LoginRefused::NotBound);
                }
            }
            Authentication::SaslContinue(_) => {}
            Authentication::SaslFinal(_) => self.sasl_finished = true,
            _ if self.requires_binding => return Err(LoginRefused::NotBound),
            _ => {}
        }
        self.has_asked = true;
        let method = method(request);
        if self.allows(method) { Ok(()) } else { Err(LoginRefused::Method { method }) }
    }

    fn allows(&self, method: &str) -> bool {
        METHODS.iter().position(|name| *name == method).is_none_or(|index| self.allowed[index])
    }
}

/// Returns the [`METHODS`] keyword for a request, if there is one, otherwise another name. The
/// client never answers SASL mechanisms other than SCRAM.
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
        backend::{BackendMessage, encode},
    };

    use super::*;
    use crate::setting_origin::SettingOrigin;

    fn policy(require_auth: &str, binding: ChannelBindingMode) -> AuthPolicy {
        let mut settings = KeywordValues::default();
        settings.set("require_auth", require_auth, SettingOrigin::Argument).unwrap();
        let tls = TlsSettings { channel_binding: binding, ..TlsSettings::default() };
        AuthPolicy::resolve(&settings, &tls).unwrap().for_login(true)
    }

    /// Passes an offer of SASL mechanisms, in the server's bytes, to the policy.
    fn offer(policy: &mut AuthPolicy, mechanisms: &[&[u8]]) -> Result<(), LoginRefused> {
        let mut bytes = Vec::new();
        encode::authentication(&mut bytes, encode::AuthenticationRequest::Sasl(mechanisms))
            .unwrap();
        let (frame, _) = Frame::split(&bytes, 1000).unwrap().unwrap();
        let BackendMessage::Authentication(request) = BackendMessage::parse(frame).unwrap() else {
            panic!()
        };
        policy.check(&request)
    }

    #[test]
    fn only_required_methods_are_allowed() {
        use Authentication::{CleartextPassword, Md5Password, Ok as Done};
        let md5 = Md5Password { salt: *b"salt" };
        let mut any = policy("", ChannelBindingMode::Prefer);
        assert_eq!(any.check(&CleartextPassword), Ok(()));
        let mut scram = policy("scram-sha-256", ChannelBindingMode::Prefer);
        assert_eq!(offer(&mut scram, &[b"SCRAM-SHA-256"]), Ok(()));
        assert_eq!(scram.check(&Done), Ok(()));
        let mut scram = policy("scram-sha-256", ChannelBindingMode::Prefer);
        let refused = Err(LoginRefused::Method { method: "password" });
        assert_eq!(scram.check(&CleartextPassword), refused);
        assert_eq!(scram.check(&md5), Err(LoginRefused::Method { method: "md5" }));
        let mut trusting = policy("scram-sha-256", ChannelBindingMode::Prefer);
        assert_eq!(trusting.check(&Done), Err(LoginRefused::Method { method: "none" }));
        let mut not_plain = policy("!password,!none", ChannelBindingMode::Prefer);
        assert_eq!(not_plain.check(&CleartextPassword), refused);
        assert_eq!(not_plain.check(&md5), Ok(()));
        assert_eq!(not_plain.check(&Done), Ok(()));
    }

    #[test]
    fn required_channel_binding_is_enforced() {
        use Authentication::{CleartextPassword, Ok as Done, SaslContinue, SaslFinal};
        let new = || policy("", ChannelBindingMode::Require);
        assert_eq!(new().check(&CleartextPassword), Err(LoginRefused::NotBound));
        assert_eq!(new().check(&Done), Err(LoginRefused::NotBound));
        assert_eq!(offer(&mut new(), &[b"SCRAM-SHA-256"]), Err(LoginRefused::NotBound));
        let plus: &[&[u8]] = &[b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"];
        // A client without the certificate's hash would choose the mechanism without binding.
        assert_eq!(offer(&mut new().for_login(false), plus), Err(LoginRefused::NotBound));
        let mut bound = new();
        assert_eq!(offer(&mut bound, plus), Ok(()));
        assert_eq!(bound.clone().check(&Done), Err(LoginRefused::NotBound));
        assert_eq!(bound.check(&SaslContinue(b"")), Ok(()));
        assert_eq!(bound.check(&SaslFinal(b"")), Ok(()));
        assert_eq!(bound.check(&Done), Ok(()));
    }

    #[test]
    fn method_list_is_all_positive_or_all_negated() {
        assert!(parse_methods("md5,password").is_some());
        assert!(parse_methods("!md5,!password").is_some());
        for list in ["md5,!password", "!md5,password", "md5,md5", "kerberos", "md5,", "!!md5"] {
            assert!(parse_methods(list).is_none(), "{list}");
        }
    }
}

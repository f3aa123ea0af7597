//! The start of a connection, with or without TLS, and the alternatives after a failed attempt.
//!
//! ```text
//!             send SSLRequest          'S'
//! Requested ─────────────────► answer ─────► handshake ─► startup packet
//! Optional  ─────────────────►   │ 'N'
//!                                ├─ Optional ───────────► startup packet
//!                                └─ Requested: error
//! Direct    ───────────────────────────────► handshake ─► startup packet
//! Plain     ────────────────────────────────────────────► startup packet
//! ```
//!
//! Source: PostgreSQL manual, "SSL Session Encryption".

use howdah_wire::startup::{self, EncryptionReply};

use super::settings::{SslMode, SslNegotiation, TlsSettings};
use crate::Endpoint;

/// A way to start a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Start without TLS.
    Plain,
    /// Start with TLS if the server offers it.
    Optional,
    /// Start with TLS, requested by an SSLRequest.
    Requested,
    /// Start with TLS immediately, without an SSLRequest.
    Direct,
}

impl TlsSettings {
    /// Returns the ways to start a connection to `endpoint`, in the order in which to try them.
    ///
    /// Try the next one only if the previous failed because of how it started: the TLS handshake
    /// failed, or the server would accept the client only with, or only without, encryption
    /// ([`Encryption::allows_fallback`]). An unreachable server or a wrong password will fail
    /// again. After an [`Encryption::Optional`] that continued without TLS, no further attempt is
    /// useful.
    pub fn attempts(&self, endpoint: &Endpoint) -> &'static [Encryption] {
        use Encryption::{Direct, Optional, Plain, Requested};
        match (endpoint, self.mode, self.negotiation) {
            (Endpoint::Unix { .. }, ..) | (_, SslMode::Disable, _) => &[Plain],
            (_, SslMode::Allow, _) => &[Plain, Requested],
            (_, SslMode::Prefer, _) => &[Optional, Plain],
            (_, _, SslNegotiation::Postgres) => &[Requested],
            (_, _, SslNegotiation::Direct) => &[Direct],
        }
    }
}

impl Encryption {
    /// Whether a refused login, by its SQLSTATE, may be due to how the connection started. A server
    /// without a matching line in `pg_hba.conf` returns `28000`.
    pub fn allows_fallback(sqlstate: &[u8]) -> bool {
        sqlstate == b"28000"
    }
}

/// The next step at the start of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpeningStep {
    /// Send these bytes and pass the server's reply to [`Negotiation::handle_reply`].
    Send(&'static [u8]),
    /// Start the TLS handshake.
    Handshake,
    /// Send the startup packet.
    Startup,
}

/// The first bytes of an attempt to connect, as a state machine without I/O.
#[derive(Clone, Copy, Debug)]
pub struct Negotiation {
    encryption: Encryption,
}

/// The reason why a connection cannot continue after the negotiation of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NegotiationError {
    /// The attempt to connect requires TLS, and the server does not offer it.
    #[error("the server does not offer TLS, which this attempt requires (see sslmode)")]
    NotOffered,
    /// The server sent an error. Its text is not shown: it was not authenticated, so anyone on the
    /// network path could have written it (CVE-2024-10977).
    #[error("the server answered the request for TLS with an error")]
    ServerError,
    /// The server replied with a byte that does not answer the request: it is not PostgreSQL.
    #[error("the server answered the request for TLS with byte {byte:#04x}: it is not PostgreSQL")]
    NotPostgres {
        /// The byte that the server sent.
        byte: u8,
    },
    /// Bytes followed the one-byte reply. An attacker may have injected them so that they would be
    /// accepted as if they had been encrypted (CVE-2021-23222).
    #[error("the server sent unencrypted data after its answer to the request for TLS")]
    UnencryptedData,
    /// With direct TLS, the server did not select the ALPN protocol `postgresql`.
    #[error("the server accepted direct TLS, but did not select the ALPN protocol \"postgresql\"")]
    NoAlpn,
}

/// The ALPN protocol name of PostgreSQL, since version 17.
pub(super) const ALPN_PROTOCOL: &[u8] = b"postgresql";

impl Negotiation {
    /// Starts an attempt to connect in this way.
    pub fn new(encryption: Encryption) -> Self {
        Self { encryption }
    }

    /// Returns the first step.
    pub fn opening(self) -> OpeningStep {
        match self.encryption {
            Encryption::Plain => OpeningStep::Startup,
            Encryption::Direct => OpeningStep::Handshake,
            Encryption::Optional | Encryption::Requested => {
                OpeningStep::Send(&startup::SSL_REQUEST_PACKET)
            }
        }
    }

    /// Handles the server's reply and returns the next step. `received` is *everything* received so
    /// far; the result is `None` while that is empty. A caller that reads exactly one byte is safe
    /// as well.
    ///
    /// # Errors
    ///
    /// The connection must be closed.
    pub fn handle_reply(self, received: &[u8]) -> Result<Option<OpeningStep>, NegotiationError> {
        let Some(&byte) = received.first() else { return Ok(None) };
        let opening = match (EncryptionReply::from_byte(byte), self.encryption) {
            (Some(EncryptionReply::Tls), _) => OpeningStep::Handshake,
            (Some(EncryptionReply::Refused), Encryption::Optional) => OpeningStep::Startup,
            (Some(EncryptionReply::Refused), _) => return Err(NegotiationError::NotOffered),
            (Some(EncryptionReply::Error), _) => return Err(NegotiationError::ServerError),
            _ => return Err(NegotiationError::NotPostgres { byte }),
        };
        if received.len() > 1 { Err(NegotiationError::UnencryptedData) } else { Ok(Some(opening)) }
    }

    /// Checks the ALPN protocol that the server selected in a finished TLS handshake.
    ///
    /// # Errors
    ///
    /// The connection uses direct TLS, and the server did not select `postgresql`: only ALPN can
    /// prove that it is PostgreSQL.
    pub fn handshake_done(self, alpn_protocol: Option<&[u8]>) -> Result<(), NegotiationError> {
        match (self.encryption, alpn_protocol) {
            (Encryption::Direct, protocol) if protocol != Some(ALPN_PROTOCOL) => {
                Err(NegotiationError::NoAlpn)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_follow_sslmode() {
        use Encryption::{Direct, Optional, Plain, Requested};
        let tcp = Endpoint::Tcp { host: "db1".to_owned(), hostaddr: None, port: 5432 };
        let of = |mode| TlsSettings { mode, ..TlsSettings::default() };
        assert_eq!(of(SslMode::Disable).attempts(&tcp), [Plain]);
        assert_eq!(of(SslMode::Allow).attempts(&tcp), [Plain, Requested]);
        assert_eq!(of(SslMode::Prefer).attempts(&tcp), [Optional, Plain]);
        for mode in [SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
            assert_eq!(of(mode).attempts(&tcp), [Requested]);
            let direct = TlsSettings { negotiation: SslNegotiation::Direct, ..of(mode) };
            assert_eq!(direct.attempts(&tcp), [Direct]);
            assert_eq!(direct.attempts(&Endpoint::in_directory("/tmp", 5432)), [Plain]);
        }
    }

    #[test]
    fn reply_is_interpreted_by_attempt() {
        let optional = Negotiation::new(Encryption::Optional);
        let requested = Negotiation::new(Encryption::Requested);
        for negotiation in [optional, requested] {
            assert_eq!(negotiation.opening(), OpeningStep::Send(&startup::SSL_REQUEST_PACKET));
            assert_eq!(negotiation.handle_reply(b""), Ok(None));
            assert_eq!(negotiation.handle_reply(b"S"), Ok(Some(OpeningStep::Handshake)));
            assert_eq!(negotiation.handle_reply(b"E"), Err(NegotiationError::ServerError));
            let http = Err(NegotiationError::NotPostgres { byte: b'H' });
            assert_eq!(negotiation.handle_reply(b"HTTP/1.1 400"), http);
        }
        assert_eq!(optional.handle_reply(b"N"), Ok(Some(OpeningStep::Startup)));
        assert_eq!(requested.handle_reply(b"N"), Err(NegotiationError::NotOffered));
    }

    #[test]
    fn bytes_before_handshake_are_refused() {
        for encryption in [Encryption::Optional, Encryption::Requested] {
            let answer = Negotiation::new(encryption).handle_reply(b"SR\0\0\0\x08\0\0\0\0");
            assert_eq!(answer, Err(NegotiationError::UnencryptedData));
        }
        let answer = Negotiation::new(Encryption::Optional).handle_reply(b"NR");
        assert_eq!(answer, Err(NegotiationError::UnencryptedData));
    }

    #[test]
    fn only_direct_tls_requires_alpn() {
        let direct = Negotiation::new(Encryption::Direct);
        assert_eq!(direct.opening(), OpeningStep::Handshake);
        assert_eq!(direct.handshake_done(Some(b"postgresql")), Ok(()));
        assert_eq!(direct.handshake_done(Some(b"http/1.1")), Err(NegotiationError::NoAlpn));
        assert_eq!(direct.handshake_done(None), Err(NegotiationError::NoAlpn));
        assert_eq!(Negotiation::new(Encryption::Requested).handshake_done(None), Ok(()));
    }
}

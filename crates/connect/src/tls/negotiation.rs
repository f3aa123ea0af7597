//! How a connection begins: with TLS or without, and what may be tried after one way has failed.
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

/// One way to begin a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Without TLS.
    Plain,
    /// With TLS if the server says it has it.
    Optional,
    /// With TLS, which the server is asked for.
    Requested,
    /// With TLS at once, without asking.
    Direct,
}

impl TlsSettings {
    /// The ways to begin a connection to `endpoint`, in the order they are to be tried.
    ///
    /// The next one is for when the one before has failed because of how it began: the TLS
    /// handshake failed, or the server would have let the client in only with, or only without,
    /// encryption ([`Encryption::may_fall_back`]). A server that cannot be reached, or does not like
    /// the password, will not like them better the next time. After an [`Encryption::Optional`]
    /// that went on without TLS there is nothing left to try.
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
    /// Whether a server's refusal to log in, by its SQLSTATE, may be due to how the connection
    /// began. `28000` is what a server without a matching line in `pg_hba.conf` answers.
    pub fn may_fall_back(sqlstate: &[u8]) -> bool {
        sqlstate == b"28000"
    }
}

/// What is next at the beginning of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Send these bytes and show what the server answers to [`Negotiation::answer`].
    Ask(&'static [u8]),
    /// Begin the TLS handshake.
    Handshake,
    /// Begin with the startup packet.
    Startup,
}

/// The first bytes of one attempt to connect. It does no I/O.
#[derive(Clone, Copy, Debug)]
pub struct Negotiation {
    encryption: Encryption,
}

/// The server's answer to an SSLRequest means that the connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NegotiationError {
    /// TLS must be, and the server has none.
    #[error("the server does not offer TLS, but sslmode requires it")]
    NotOffered,
    /// The server sent an error. Its text is not shown: it came without protection, so anybody
    /// between us could have written it (CVE-2024-10977).
    #[error("the server answered the request for TLS with an error")]
    ServerError,
    /// Another byte than the protocol knows: this is no PostgreSQL server.
    #[error("the server answered the request for TLS with byte {byte:#04x}: it is not PostgreSQL")]
    NotPostgres {
        /// The byte.
        byte: u8,
    },
    /// More bytes came than the one that answers. Somebody between us may have put them there, to
    /// be believed as if they had come encrypted (CVE-2021-23222).
    #[error("the server sent unencrypted data after its answer to the request for TLS")]
    UnencryptedData,
    /// A server with which TLS began at once did not choose ALPN protocol `postgresql`.
    #[error("the server took TLS at once, but does not say that it is PostgreSQL (ALPN)")]
    NoAlpn,
}

/// What a PostgreSQL server calls its protocol in ALPN, since PostgreSQL 17.
pub(super) const ALPN_PROTOCOL: &[u8] = b"postgresql";

impl Negotiation {
    /// An attempt to begin in this way.
    pub fn new(encryption: Encryption) -> Self {
        Self { encryption }
    }

    /// What to do first.
    pub fn opening(self) -> Opening {
        match self.encryption {
            Encryption::Plain => Opening::Startup,
            Encryption::Direct => Opening::Handshake,
            Encryption::Optional | Encryption::Requested => {
                Opening::Ask(&startup::SSL_REQUEST_PACKET)
            }
        }
    }

    /// What the server's answer means. `received` is *everything* that has been received so far;
    /// `None` while that is nothing. A caller that reads exactly one byte is safe as well.
    ///
    /// # Errors
    ///
    /// Close the connection.
    pub fn answer(self, received: &[u8]) -> Result<Option<Opening>, NegotiationError> {
        let Some(&byte) = received.first() else { return Ok(None) };
        let opening = match (EncryptionReply::from_byte(byte), self.encryption) {
            (Some(EncryptionReply::Tls), _) => Opening::Handshake,
            (Some(EncryptionReply::Refused), Encryption::Optional) => Opening::Startup,
            (Some(EncryptionReply::Refused), _) => return Err(NegotiationError::NotOffered),
            (Some(EncryptionReply::Error), _) => return Err(NegotiationError::ServerError),
            _ => return Err(NegotiationError::NotPostgres { byte }),
        };
        if received.len() > 1 { Err(NegotiationError::UnencryptedData) } else { Ok(Some(opening)) }
    }

    /// Judges a finished TLS handshake by the ALPN protocol that the server chose.
    ///
    /// # Errors
    ///
    /// TLS began at once, so nothing but ALPN can tell that this is a PostgreSQL server, and the
    /// server chose none.
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
    fn each_mode_has_its_order_of_attempts() {
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
    fn the_answer_means_what_the_attempt_allows() {
        let optional = Negotiation::new(Encryption::Optional);
        let requested = Negotiation::new(Encryption::Requested);
        for negotiation in [optional, requested] {
            assert_eq!(negotiation.opening(), Opening::Ask(&startup::SSL_REQUEST_PACKET));
            assert_eq!(negotiation.answer(b""), Ok(None));
            assert_eq!(negotiation.answer(b"S"), Ok(Some(Opening::Handshake)));
            assert_eq!(negotiation.answer(b"E"), Err(NegotiationError::ServerError));
            let http = Err(NegotiationError::NotPostgres { byte: b'H' });
            assert_eq!(negotiation.answer(b"HTTP/1.1 400"), http);
        }
        assert_eq!(optional.answer(b"N"), Ok(Some(Opening::Startup)));
        assert_eq!(requested.answer(b"N"), Err(NegotiationError::NotOffered));
    }

    #[test]
    fn bytes_before_the_handshake_are_not_believed() {
        for encryption in [Encryption::Optional, Encryption::Requested] {
            let answer = Negotiation::new(encryption).answer(b"SR\0\0\0\x08\0\0\0\0");
            assert_eq!(answer, Err(NegotiationError::UnencryptedData));
        }
        let answer = Negotiation::new(Encryption::Optional).answer(b"NR");
        assert_eq!(answer, Err(NegotiationError::UnencryptedData));
    }

    #[test]
    fn only_direct_tls_needs_the_name_of_the_protocol() {
        let direct = Negotiation::new(Encryption::Direct);
        assert_eq!(direct.opening(), Opening::Handshake);
        assert_eq!(direct.handshake_done(Some(b"postgresql")), Ok(()));
        assert_eq!(direct.handshake_done(Some(b"http/1.1")), Err(NegotiationError::NoAlpn));
        assert_eq!(direct.handshake_done(None), Err(NegotiationError::NoAlpn));
        assert_eq!(Negotiation::new(Encryption::Requested).handshake_done(None), Ok(()));
    }
}

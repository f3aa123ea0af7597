//! [`Rejection`]: why a client is not let in, in the words it is told.

use crate::proxy::NoHeader;
use howdah_wire::{
    backend::{Severity, encode},
    startup::ProtocolVersion,
};

/// Why a client is not let in. The texts are PostgreSQL's wherever it has the same reason, so that
/// drivers and people recognise them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// Bytes that begin no connection. Nothing is answered: nobody knows what would be understood.
    #[error("this is no startup packet of PostgreSQL's protocol")]
    NoStartup,
    /// Who has to say for whom it comes does not.
    #[error(transparent)]
    NoProxyHeader(#[from] NoHeader),
    /// The startup packet has another layout.
    #[error("invalid startup packet layout: {0}")]
    Layout(
        /// What about it.
        String,
    ),
    /// A protocol that is not spoken.
    #[error("unsupported frontend protocol {0}: server supports 3.0 to 3.2")]
    Protocol(
        /// The version asked for.
        ProtocolVersion,
    ),
    /// TLS or GSSAPI encryption is asked for a second time, or within TLS.
    #[error("unsupported frontend protocol 1234.{0}: encryption was asked for before")]
    AskedTwice(
        /// 5679 for TLS, 5680 for GSSAPI.
        u16,
    ),
    /// Bytes came before the answer to the request for encryption: somebody between us may have put
    /// them there (CVE-2021-23214).
    #[error("received unencrypted data after {0} request")]
    UnencryptedData(
        /// `SSL` or `GSSAPI encryption`.
        &'static str,
    ),
    /// TLS began at once, but not for PostgreSQL's protocol.
    #[error("received direct SSL connection request without ALPN protocol negotiation extension")]
    NoAlpn,
    /// Only connections with TLS are let in.
    #[error("SSL required")]
    TlsRequired,
    /// There is no user in the startup packet.
    #[error("no PostgreSQL user name specified in startup packet")]
    NoUser,
    /// A parameter that would get lost on the way from server to server.
    #[error("unsupported startup parameter: {0}")]
    Parameter(
        /// Its name.
        String,
    ),
    /// The same, inside of `options`.
    #[error("unsupported startup parameter in options: {0}")]
    OptionsParameter(
        /// Its name.
        String,
    ),
    /// `options` that are more than parameters.
    #[error(
        "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed"
    )]
    Options,
    /// `replication` is no word that means something.
    #[error("invalid value for parameter \"replication\": \"{0}\"")]
    Replication(
        /// The word.
        String,
    ),
    /// `target_session_attrs` is no word that means something.
    #[error("invalid target_session_attrs value: \"{0}\"")]
    SessionAttributes(
        /// The word.
        String,
    ),
    /// The password is wrong, or there is no such user: which, is not told.
    #[error("password authentication failed for user \"{0}\"")]
    Password(
        /// The user.
        String,
    ),
    /// The certificate is another's, or there is none.
    #[error("certificate authentication failed for user \"{0}\"")]
    Certificate(
        /// The user.
        String,
    ),
    /// The system's user may not be that user.
    #[error("Peer authentication failed for user \"{0}\"")]
    Peer(
        /// The user.
        String,
    ),
    /// No rule is about it.
    #[error("no pg_hba.conf entry for {0}")]
    NoRule(
        /// Who it is, and where from.
        String,
    ),
    /// A rule says no.
    #[error("pg_hba.conf rejects connection for {0}")]
    Rejected(
        /// Who it is, and where from.
        String,
    ),
    /// Nothing needs to be proven, but the name is unknown.
    #[error("role \"{0}\" does not exist")]
    UnknownUser(
        /// The user.
        String,
    ),
    /// There is no such database. Told to who has proven to be somebody.
    #[error("database \"{0}\" does not exist")]
    UnknownDatabase(
        /// Its name.
        String,
    ),
    /// An operator lets no new client of this database in.
    #[error("database \"{0}\" is disabled")]
    Disabled(
        /// Its name.
        String,
    ),
    /// The console is not for everybody.
    #[error("user \"{0}\" may not use the console")]
    NoOperator(
        /// The user.
        String,
    ),
    /// Another message instead of a password.
    #[error("expected password response, got message type {0}")]
    NoPassword(
        /// Its tag.
        u8,
    ),
    /// A message longer than any password.
    #[error("a message of the login is too long")]
    TooLong,
    /// A SASL mechanism that was not offered.
    #[error("client selected an invalid SASL authentication mechanism")]
    Mechanism,
    /// A SCRAM message that is none.
    #[error("malformed SCRAM message")]
    Scram,
    /// Client and we do not see the same TLS connection.
    #[error("SCRAM channel binding check failed")]
    ChannelBinding,
    /// The login took too long.
    #[error("client_login_timeout: the login took too long")]
    Timeout,
    /// As many clients as there may be.
    #[error("no more connections allowed ({0})")]
    TooMany(
        /// PgBouncer's name of the limit.
        &'static str,
    ),
    /// The pooler is shutting down: only its console still takes connections.
    #[error("the database system is shutting down")]
    ShuttingDown,
    /// The system's source of randomness fails, without which no login is safe.
    #[error("the system has no random bytes for a login")]
    NoRandomness,
}

/// Why logins are refused, as the metrics and the log sum it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// A wrong password, an unknown user who was asked for one, or a proof that is none.
    Password,
    /// The certificate is another's, or there is none.
    Certificate,
    /// The system's user may not be that user.
    Peer,
    /// The rules of `auth.hba-file`.
    Hba,
    /// An unknown user, where nothing needs to be proven.
    User,
    /// An unknown database, or one that is disabled.
    Database,
    /// The console is not for everybody.
    Console,
    /// A startup parameter that is not supported.
    Parameter,
    /// Only connections with TLS are let in, or the handshake failed.
    Tls,
    /// As many connections as there may be.
    Limit,
    /// The login took too long.
    Timeout,
    /// Bytes that are not PostgreSQL's protocol, or not in its order.
    Protocol,
    /// A CancelRequest with a key that no client has.
    CancelKey,
    /// The pooler is shutting down.
    Shutdown,
    /// The system lacks what a login needs.
    System,
}

impl RefusalReason {
    /// Every reason.
    pub const ALL: [Self; 15] = [
        Self::Password,
        Self::Certificate,
        Self::Peer,
        Self::Hba,
        Self::User,
        Self::Database,
        Self::Console,
        Self::Parameter,
        Self::Tls,
        Self::Limit,
        Self::Timeout,
        Self::Protocol,
        Self::CancelKey,
        Self::Shutdown,
        Self::System,
    ];

    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Certificate => "certificate",
            Self::Peer => "peer",
            Self::Hba => "hba",
            Self::User => "user",
            Self::Database => "database",
            Self::Console => "console",
            Self::Parameter => "parameter",
            Self::Tls => "tls",
            Self::Limit => "limit",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::CancelKey => "cancel-key",
            Self::Shutdown => "shutdown",
            Self::System => "system",
        }
    }
}

impl Rejection {
    /// The reason that it is counted by.
    pub const fn reason(&self) -> RefusalReason {
        match self {
            Self::Password(_) | Self::ChannelBinding => RefusalReason::Password,
            Self::Certificate(_) => RefusalReason::Certificate,
            Self::Peer(_) => RefusalReason::Peer,
            Self::NoRule(_) | Self::Rejected(_) => RefusalReason::Hba,
            Self::UnknownUser(_) | Self::NoUser => RefusalReason::User,
            Self::UnknownDatabase(_) | Self::Disabled(_) => RefusalReason::Database,
            Self::NoOperator(_) => RefusalReason::Console,
            Self::Parameter(_)
            | Self::OptionsParameter(_)
            | Self::Options
            | Self::Replication(_)
            | Self::SessionAttributes(_) => RefusalReason::Parameter,
            Self::TlsRequired | Self::NoAlpn => RefusalReason::Tls,
            Self::TooMany(_) => RefusalReason::Limit,
            Self::Timeout => RefusalReason::Timeout,
            Self::ShuttingDown => RefusalReason::Shutdown,
            Self::NoRandomness => RefusalReason::System,
            Self::NoStartup
            | Self::NoProxyHeader(_)
            | Self::Layout(_)
            | Self::Protocol(_)
            | Self::AskedTwice(_)
            | Self::UnencryptedData(_)
            | Self::NoPassword(_)
            | Self::TooLong
            | Self::Mechanism
            | Self::Scram => RefusalReason::Protocol,
        }
    }

    /// Five characters that programs understand.
    pub const fn sqlstate(&self) -> &'static [u8; 5] {
        match self {
            Self::Protocol(_) => b"0A000",
            Self::Replication(_) | Self::SessionAttributes(_) => b"22023",
            Self::TlsRequired | Self::NoUser | Self::Certificate(_) | Self::UnknownUser(_) => {
                b"28000"
            }
            Self::ChannelBinding | Self::Peer(_) | Self::NoRule(_) | Self::Rejected(_) => b"28000",
            Self::NoOperator(_) => b"42501",
            Self::Disabled(_) | Self::ShuttingDown => b"57P03",
            Self::NoRandomness => b"58000",
            Self::Password(_) => b"28P01",
            Self::UnknownDatabase(_) => b"3D000",
            Self::TooMany(_) => b"53300",
            Self::Timeout => b"57014",
            Self::NoStartup
            | Self::NoProxyHeader(_)
            | Self::Layout(_)
            | Self::AskedTwice(_)
            | Self::UnencryptedData(_)
            | Self::NoAlpn
            | Self::Parameter(_)
            | Self::OptionsParameter(_)
            | Self::Options
            | Self::NoPassword(_)
            | Self::TooLong
            | Self::Mechanism
            | Self::Scram => b"08P01",
        }
    }

    /// Whether the client is told. One that does not speak the protocol is not.
    pub const fn is_told(&self) -> bool {
        !matches!(self, Self::NoStartup | Self::NoAlpn | Self::NoProxyHeader(_))
    }

    /// Appends it as an ErrorResponse, if it is told.
    pub fn write(&self, buf: &mut Vec<u8>) {
        if self.is_told() {
            let message = self.to_string().replace('\0', " ");
            let fields = encode::essentials(Severity::Fatal, self.sqlstate(), message.as_bytes());
            encode::error_response(buf, fields).expect("no field holds a zero byte");
        }
    }
}

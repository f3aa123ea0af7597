//! [`Rejection`]: the reason why a login is refused, and the error sent to the client.

use crate::auth::proxy_protocol::ProxyHeaderError;
use howdah_wire::{
    backend::{Severity, encode},
    startup::ProtocolVersion,
};

/// The reason why a login is refused. Most texts are those of PostgreSQL or PgBouncer for the same
/// reason, so that drivers and users recognize them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The first bytes are not a startup packet. Nothing is sent: the peer may not speak the
    /// protocol.
    #[error("not a startup packet of the PostgreSQL protocol")]
    NotStartupPacket,
    /// A trusted proxy did not send a valid PROXY header.
    #[error(transparent)]
    ProxyHeader(#[from] ProxyHeaderError),
    /// The startup packet is malformed.
    #[error("invalid startup packet layout: {0}")]
    Layout(
        /// The violated rule.
        String,
    ),
    /// The message with the password or with SCRAM data is malformed.
    #[error("invalid password message: {0}")]
    PasswordMessage(
        /// The violated rule.
        String,
    ),
    /// The protocol version is not supported.
    #[error("unsupported frontend protocol {0}: server supports 3.0 to 3.2")]
    Protocol(
        /// The requested version.
        ProtocolVersion,
    ),
    /// TLS or GSSAPI encryption was requested a second time, or TLS within TLS.
    #[error("unsupported frontend protocol 1234.{0}: encryption was already requested")]
    DuplicateEncryptionRequest(
        /// 5679 for TLS, 5680 for GSSAPI.
        u16,
    ),
    /// Unencrypted bytes followed an encryption request: a man in the middle may have injected them
    /// (CVE-2021-23214).
    #[error("received unencrypted data after {0} request")]
    UnencryptedData(
        /// `SSL` or `GSSAPI encryption`.
        &'static str,
    ),
    /// Direct TLS without PostgreSQL's ALPN protocol.
    #[error("received direct SSL connection request without ALPN protocol negotiation extension")]
    NoAlpn,
    /// The client did not request TLS, and the settings require it.
    #[error("SSL required")]
    TlsRequired,
    /// The startup packet has no user.
    #[error("no PostgreSQL user name specified in startup packet")]
    NoUser,
    /// A startup parameter is not supported. Most such parameters are not tracked, so their values
    /// would be lost when the client gets another server.
    #[error("unsupported startup parameter: {0}")]
    Parameter(
        /// Name of the unsupported parameter.
        String,
    ),
    /// A startup parameter within `options` is not tracked.
    #[error("unsupported startup parameter in options: {0}")]
    OptionsParameter(
        /// Name of the unsupported parameter.
        String,
    ),
    /// `options` contains something other than parameters with values.
    #[error(
        "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed"
    )]
    Options,
    /// The value of `replication` is invalid.
    #[error("invalid value for parameter \"replication\": \"{0}\"")]
    Replication(
        /// The value as received.
        String,
    ),
    /// The value of `target_session_attrs` is invalid.
    #[error("invalid target_session_attrs value: \"{0}\"")]
    SessionAttributes(
        /// The value as received.
        String,
    ),
    /// The password is wrong, or the user does not exist or has no secret that the method can use.
    /// The client cannot distinguish these cases.
    #[error("password authentication failed for user \"{0}\"")]
    Password(
        /// The user from the startup packet.
        String,
    ),
    /// The user's password must be checked at the server, and the connection is not protected
    /// against eavesdropping.
    #[error(
        "SSL required: the password of user \"{0}\" is checked at the server, so it is only accepted \
         over SSL or a unix socket"
    )]
    UnprotectedPassword(
        /// The user from the startup packet.
        String,
    ),
    /// Several passwords of the user were refused by the server a short time ago, so another one
    /// was not sent there.
    #[error("too many failed logins of user \"{0}\": try again in a few seconds")]
    TooManyPasswords(
        /// The user from the startup packet.
        String,
    ),
    /// The user's password could not be checked at the server.
    #[error("{message}")]
    PasswordCheck {
        /// SQLSTATE of the server's error, or of the reason why there was no answer.
        sqlstate: [u8; 5],
        /// The error message.
        message: String,
    },
    /// The client sent no certificate that is valid for the user.
    #[error("certificate authentication failed for user \"{0}\"")]
    Certificate(
        /// The user from the startup packet.
        String,
    ),
    /// The OS user is unknown, or not allowed to log in as the requested user.
    #[error("Peer authentication failed for user \"{0}\"")]
    Peer(
        /// The user from the startup packet.
        String,
    ),
    /// No line of `auth.hba-file` matches the connection.
    #[error("no pg_hba.conf entry for {0}")]
    NoRule(
        /// Host, user, database and encryption of the connection, as in PostgreSQL's error.
        String,
    ),
    /// A `reject` line of `auth.hba-file` matches the connection.
    #[error("pg_hba.conf rejects connection for {0}")]
    Rejected(
        /// Host, user, database and encryption of the connection, as in PostgreSQL's error.
        String,
    ),
    /// The method requires no password, but the user is unknown.
    #[error("role \"{0}\" does not exist")]
    UnknownUser(
        /// The user from the startup packet.
        String,
    ),
    /// The database is not configured. Reported only after authentication.
    #[error("database \"{0}\" does not exist")]
    UnknownDatabase(
        /// The database from the startup packet.
        String,
    ),
    /// An administrator has disabled the database.
    #[error("database \"{0}\" is disabled")]
    Disabled(
        /// The database from the startup packet.
        String,
    ),
    /// The user has no access to the console.
    #[error("user \"{0}\" may not use the console")]
    NotAdmin(
        /// The user from the startup packet.
        String,
    ),
    /// The client sent a message of another type instead of a password.
    #[error("expected password response, got message type {0}")]
    UnexpectedMessage(
        /// Tag of the received message.
        u8,
    ),
    /// A message is longer than any valid one, or the client has sent too much ahead.
    #[error("login message too long")]
    TooLong,
    /// The client selected a SASL mechanism that was not offered.
    #[error("client selected an invalid SASL authentication mechanism")]
    Mechanism,
    /// A SCRAM message is malformed, or does not match the exchange.
    #[error("malformed SCRAM message")]
    Scram,
    /// SCRAM channel binding failed, for example because client and pooler are not the two ends of
    /// one TLS connection.
    #[error("SCRAM channel binding check failed")]
    ChannelBinding,
    /// The login timed out.
    #[error("client_login_timeout: the login took too long")]
    Timeout,
    /// A limit on connections is reached.
    #[error("no more connections allowed ({0})")]
    TooMany(
        /// The limit: its name in PgBouncer, such as `max_client_conn`, or `console connections`.
        &'static str,
    ),
    /// The client needs a new pool, and the maximum number of pools is reached.
    #[error("no more pools allowed: the pooler can have {0}")]
    TooManyPools(
        /// The maximum number of pools.
        usize,
    ),
    /// The pooler is shutting down: only its console still accepts connections.
    #[error("the database system is shutting down")]
    ShuttingDown,
    /// The operating system failed to provide random bytes, which every login needs.
    #[error("could not get random bytes from the operating system")]
    NoRandomness,
}

/// The reason for a refused login or CancelRequest, under which it is counted in the metrics and
/// logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// A wrong password, an unknown user, a user without a usable secret, or failed SCRAM channel
    /// binding.
    Password,
    /// A password could not be checked at the server.
    Server,
    /// The client sent no certificate that is valid for the user.
    Certificate,
    /// The OS user is unknown, or not allowed to log in as the requested user.
    Peer,
    /// Refused by the rules of `auth.hba-file`.
    Hba,
    /// An unknown user, with a method that requires no password, or no user name at all.
    User,
    /// An unknown database, or one that is disabled.
    Database,
    /// The user has no access to the console.
    Console,
    /// A startup parameter that is not supported, or whose value is invalid.
    Parameter,
    /// TLS is required, the handshake failed, or direct TLS came without ALPN.
    Tls,
    /// A limit on connections or pools is reached.
    Limit,
    /// The login timed out.
    Timeout,
    /// A violation of PostgreSQL's or the PROXY protocol, or an unsupported protocol version.
    Protocol,
    /// A CancelRequest with an unknown key.
    CancelKey,
    /// The pooler is shutting down.
    Shutdown,
    /// The operating system failed to provide random bytes.
    System,
}

impl RefusalReason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 16] = [
        Self::Password,
        Self::Server,
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

    /// Returns the reason's name in metrics and log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Server => "server",
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
    /// Returns the reason under which this rejection is counted.
    pub const fn reason(&self) -> RefusalReason {
        match self {
            Self::Password(_) | Self::TooManyPasswords(_) | Self::ChannelBinding => {
                RefusalReason::Password
            }
            Self::PasswordCheck { .. } => RefusalReason::Server,
            Self::Certificate(_) => RefusalReason::Certificate,
            Self::Peer(_) => RefusalReason::Peer,
            Self::NoRule(_) | Self::Rejected(_) => RefusalReason::Hba,
            Self::UnknownUser(_) | Self::NoUser => RefusalReason::User,
            Self::UnknownDatabase(_) | Self::Disabled(_) => RefusalReason::Database,
            Self::NotAdmin(_) => RefusalReason::Console,
            Self::Parameter(_)
            | Self::OptionsParameter(_)
            | Self::Options
            | Self::Replication(_)
            | Self::SessionAttributes(_) => RefusalReason::Parameter,
            Self::TlsRequired | Self::UnprotectedPassword(_) | Self::NoAlpn => RefusalReason::Tls,
            Self::TooMany(_) | Self::TooManyPools(_) => RefusalReason::Limit,
            Self::Timeout => RefusalReason::Timeout,
            Self::ShuttingDown => RefusalReason::Shutdown,
            Self::NoRandomness => RefusalReason::System,
            Self::NotStartupPacket
            | Self::ProxyHeader(_)
            | Self::Layout(_)
            | Self::PasswordMessage(_)
            | Self::Protocol(_)
            | Self::DuplicateEncryptionRequest(_)
            | Self::UnencryptedData(_)
            | Self::UnexpectedMessage(_)
            | Self::TooLong
            | Self::Mechanism
            | Self::Scram => RefusalReason::Protocol,
        }
    }

    /// Returns the SQLSTATE that PostgreSQL uses for the same or the most similar error.
    pub const fn sqlstate(&self) -> &[u8; 5] {
        match self {
            Self::Protocol(_) => b"0A000",
            Self::Replication(_) | Self::SessionAttributes(_) => b"22023",
            Self::TlsRequired | Self::NoUser | Self::Certificate(_) | Self::UnknownUser(_) => {
                b"28000"
            }
            Self::ChannelBinding | Self::Peer(_) | Self::NoRule(_) | Self::Rejected(_) => b"28000",
            Self::UnprotectedPassword(_) | Self::TooManyPasswords(_) => b"28000",
            Self::PasswordCheck { sqlstate, .. } => sqlstate,
            Self::NotAdmin(_) => b"42501",
            Self::Disabled(_) | Self::ShuttingDown => b"57P03",
            Self::NoRandomness => b"58000",
            Self::Password(_) => b"28P01",
            Self::UnknownDatabase(_) => b"3D000",
            Self::TooMany(_) | Self::TooManyPools(_) => b"53300",
            Self::Timeout => b"57014",
            Self::NotStartupPacket
            | Self::ProxyHeader(_)
            | Self::Layout(_)
            | Self::PasswordMessage(_)
            | Self::DuplicateEncryptionRequest(_)
            | Self::UnencryptedData(_)
            | Self::NoAlpn
            | Self::Parameter(_)
            | Self::OptionsParameter(_)
            | Self::Options
            | Self::UnexpectedMessage(_)
            | Self::TooLong
            | Self::Mechanism
            | Self::Scram => b"08P01",
        }
    }

    /// Whether the error is sent to the client. It is withheld if the peer may not speak the
    /// protocol.
    pub const fn is_sent_to_client(&self) -> bool {
        !matches!(self, Self::NotStartupPacket | Self::NoAlpn | Self::ProxyHeader(_))
    }

    /// Appends an ErrorResponse, unless the error must not be sent to the client.
    pub fn write(&self, buf: &mut Vec<u8>) {
        if self.is_sent_to_client() {
            let message = self.to_string().replace('\0', " ");
            let fields = encode::essentials(Severity::Fatal, self.sqlstate(), message.as_bytes());
            encode::error_response(buf, fields).expect("no field holds a zero byte");
        }
    }
}

//! The keys of the section `[general]`.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use howdah_connect::SslMode;

use super::{
    super::{
        AuthMethod, Config, LimitConfig, ListenConfig, LogConfig, PoolMode, StoredSecret,
        TcpConfig, TimeoutConfig, UserConfig,
    },
    keys::{PgcatKey, dropped, dropped_if_on, sets},
    timeout_millis,
    value::{flag, number, text},
};

/// The settings of `[general]`, which apply to all pools.
#[derive(Debug)]
pub(super) struct General {
    pub(super) config: Config,
    /// Time for which a failed replica is banned. Copied to the cluster of every database, like
    /// `check_timeout`.
    pub(super) ban: Duration,
    pub(super) check_timeout: Duration,
    admin: Option<String>,
    admin_secret: Option<StoredSecret>,
    auth_query_user: Option<String>,
    auth_query_secret: Option<StoredSecret>,
    server_tls: bool,
    verifies_server: bool,
}

impl Default for General {
    /// Returns PgCat's defaults, expressed in the pooler's settings.
    fn default() -> Self {
        let config = Config {
            listen: ListenConfig {
                addresses: vec!["*".to_owned()],
                port: 5432,
                unix_directories: Vec::new(),
                ..ListenConfig::default()
            },
            workers: NonZeroUsize::new(4),
            mode: PoolMode::Transaction,
            // PgCat does not limit the number of clients.
            limits: LimitConfig { clients: 10_000, ..LimitConfig::default() },
            timeouts: TimeoutConfig {
                query_wait: timeout_millis(1000),
                server_connect: timeout_millis(1000),
                ..TimeoutConfig::default()
            },
            auth: super::super::AuthConfig { method: AuthMethod::Md5, ..Default::default() },
            tcp: TcpConfig {
                keepalive_idle: timeout_millis(5000),
                keepalive_interval: timeout_millis(5000),
                keepalive_count: NonZeroU32::new(5),
                user_timeout: timeout_millis(10_000),
                ..TcpConfig::default()
            },
            round_robin: true,
            max_prepared_statements: 0,
            log: LogConfig { connections: false, disconnections: false, ..LogConfig::default() },
            // PgCat ignores all startup parameters that it does not track, so the common ones must
            // not be refused here.
            ignored_startup_parameters: ["extra_float_digits", "options"].map(str::to_owned).into(),
            ..Config::default()
        };
        Self {
            config,
            ban: Duration::from_secs(60),
            check_timeout: Duration::from_secs(1),
            admin: None,
            admin_secret: None,
            auth_query_user: None,
            auth_query_secret: None,
            server_tls: false,
            verifies_server: false,
        }
    }
}

impl General {
    /// Returns the configuration, including settings that depend on several keys.
    pub(super) fn config(&self) -> Config {
        let mut config = self.config.clone();
        config.tls.server.mode = Some(match (self.server_tls, self.verifies_server) {
            (false, _) => SslMode::Disable,
            (true, false) => SslMode::Prefer,
            (true, true) => SslMode::VerifyFull,
        });
        if config.tls.client.certificate.is_some() {
            config.tls.client.mode = Some(SslMode::Prefer);
        }
        for (name, secret) in
            [(&self.admin, &self.admin_secret), (&self.auth_query_user, &self.auth_query_secret)]
        {
            if let Some(name) = name {
                let user = UserConfig { secret: secret.clone(), ..UserConfig::default() };
                config.users.insert(name.clone(), user);
            }
        }
        config.admin_users.extend(self.admin.clone());
        config.auth.user.clone_from(&self.auth_query_user);
        config
    }
}

const DNS: &str = "names are resolved by the operating system for each new connection";
const METRICS: &str = "metrics are enabled by the option `--metrics HOST:PORT`";

/// Replaces `'$1'`, where PgCat inserts the user name as text, with the parameter `$1`.
pub(super) fn parameterized_query(query: &str) -> String {
    query.replace("'$1'", "$1")
}

/// All keys of the section, ordered by name.
pub(super) const KEYS: &[PgcatKey<General>] = &[
    dropped_if_on!("admin_auth_type", "`auth.type` also applies to administrators"),
    sets("admin_password", "users.NAME.secret", "for `admin_username`", |it, value| {
        it.admin_secret = Some(StoredSecret::parse(&text(value)?));
        Ok(None)
    }),
    sets("admin_username", "admin-users", "", |it, value| {
        it.admin = Some(text(value)?);
        Ok(None)
    }),
    sets(
        "auth_query",
        "auth.query",
        "the user name is a parameter instead of part of the text",
        |it, value| {
            it.config.auth.query = parameterized_query(&text(value)?);
            Ok(None)
        },
    ),
    sets("auth_query_password", "users.NAME.secret", "for `auth_query_user`", |it, value| {
        it.auth_query_secret = Some(StoredSecret::parse(&text(value)?));
        Ok(None)
    }),
    sets("auth_query_user", "auth.user", "", |it, value| {
        it.auth_query_user = Some(text(value)?);
        Ok(None)
    }),
    dropped_if_on!("autoreload", "`RELOAD` at the console and SIGHUP reload the settings"),
    sets("ban_time", "databases.NAME.cluster.ban", "for every database", |it, value| {
        it.ban = Duration::from_secs(number(value)?);
        Ok(None)
    }),
    sets(
        "connect_timeout",
        "timeouts.server-connect",
        "and `timeouts.query-wait`: PgCat's key limits both",
        |it, value| {
            let limit = timeout_millis(number(value)?);
            it.config.timeouts.server_connect = limit;
            it.config.timeouts.query_wait = limit;
            Ok(None)
        },
    ),
    dropped_if_on!("dns_cache_enabled", DNS),
    dropped!("dns_max_ttl", DNS),
    dropped_if_on!("enable_prometheus_exporter", METRICS),
    sets("healthcheck_delay", "timeouts.server-check-delay", "", |it, value| {
        it.config.timeouts.server_check_delay = Duration::from_millis(number(value)?);
        Ok(None)
    }),
    sets(
        "healthcheck_timeout",
        "databases.NAME.cluster.check-timeout",
        "for every database; also used for checks in the background",
        |it, value| {
            it.check_timeout = Duration::from_millis(number(value)?);
            Ok(None)
        },
    ),
    sets("host", "listen.addresses", "", |it, value| {
        let host = text(value)?;
        it.config.listen.addresses = vec![if host == "0.0.0.0" { "*".to_owned() } else { host }];
        Ok(None)
    }),
    sets("idle_client_in_transaction_timeout", "timeouts.idle-transaction", "", |it, value| {
        it.config.timeouts.idle_transaction = timeout_millis(number(value)?);
        Ok(None)
    }),
    sets("idle_timeout", "timeouts.server-idle", "", |it, value| {
        it.config.timeouts.server_idle = timeout_millis(number(value)?);
        Ok(None)
    }),
    sets("log_client_connections", "log.connections", "", |it, value| {
        it.config.log.connections = flag(value)?;
        Ok(None)
    }),
    sets("log_client_disconnections", "log.disconnections", "", |it, value| {
        it.config.log.disconnections = flag(value)?;
        Ok(None)
    }),
    sets("port", "listen.port", "", |it, value| {
        it.config.listen.port = number(value)?;
        Ok(None)
    }),
    dropped!("prometheus_exporter_port", METRICS),
    sets("server_lifetime", "timeouts.server-lifetime", "", |it, value| {
        it.config.timeouts.server_lifetime = Duration::from_millis(number(value)?);
        Ok(None)
    }),
    sets("server_round_robin", "round-robin", "", |it, value| {
        it.config.round_robin = flag(value)?;
        Ok(None)
    }),
    sets(
        "server_tls",
        "tls.server.mode",
        "`prefer`, or `verify-full` with `verify_server_certificate`",
        |it, value| {
            it.server_tls = flag(value)?;
            Ok(None)
        },
    ),
    sets("shutdown_timeout", "timeouts.shutdown", "", |it, value| {
        it.config.timeouts.shutdown = timeout_millis(number(value)?);
        Ok(None)
    }),
    sets("tcp_keepalives_count", "tcp.keepalive-count", "for clients and servers", |it, value| {
        it.config.tcp.keepalive_count = NonZeroU32::new(number(value)?);
        Ok(None)
    }),
    sets("tcp_keepalives_idle", "tcp.keepalive-idle", "for clients and servers", |it, value| {
        it.config.tcp.keepalive_idle =
            Some(Duration::from_secs(number(value)?)).filter(|it| !it.is_zero());
        Ok(None)
    }),
    sets(
        "tcp_keepalives_interval",
        "tcp.keepalive-interval",
        "for clients and servers",
        |it, value| {
            it.config.tcp.keepalive_interval =
                Some(Duration::from_secs(number(value)?)).filter(|it| !it.is_zero());
            Ok(None)
        },
    ),
    sets("tcp_user_timeout", "tcp.user-timeout", "for clients and servers", |it, value| {
        it.config.tcp.user_timeout = timeout_millis(number(value)?);
        Ok(None)
    }),
    sets("tls_certificate", "tls.client.certificate", "", |it, value| {
        it.config.tls.client.certificate = Some(PathBuf::from(text(value)?));
        Ok(None)
    }),
    sets("tls_private_key", "tls.client.key", "", |it, value| {
        it.config.tls.client.key = Some(PathBuf::from(text(value)?));
        Ok(None)
    }),
    dropped_if_on!(
        "validate_config",
        "settings are always validated as a whole before they take effect"
    ),
    sets(
        "verify_server_certificate",
        "tls.server.mode",
        "needs `tls.server.ca-file`, the certificate authorities",
        |it, value| {
            it.verifies_server = flag(value)?;
            let why = "set tls.server.ca-file to the certificate authorities before use";
            Ok(it.verifies_server.then(|| why.to_owned()))
        },
    ),
    sets("worker_threads", "workers", "", |it, value| {
        let workers = NonZeroUsize::new(number(value)?).ok_or("must be at least 1")?;
        it.config.workers = Some(workers);
        Ok(None)
    }),
];

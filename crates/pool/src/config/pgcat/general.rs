//! The section `[general]`.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use howdah_connect::SslMode;

use super::{
    super::{AuthMethod, Config, Limits, Listen, Log, PoolMode, StoredSecret, Tcp, Timeouts, User},
    keys::{Row, nothing, nothing_if_on, sets},
    some_millis,
    value::{flag, number, text},
};

/// What holds for all pools.
#[derive(Debug)]
pub(super) struct General {
    pub(super) config: Config,
    /// For the clusters of all databases.
    pub(super) ban: Duration,
    pub(super) check_timeout: Duration,
    admin: Option<String>,
    admin_secret: Option<StoredSecret>,
    asker: Option<String>,
    asker_secret: Option<StoredSecret>,
    server_tls: bool,
    verifies: bool,
}

impl Default for General {
    /// What PgCat does where its file says nothing.
    fn default() -> Self {
        let config = Config {
            listen: Listen {
                addresses: vec!["*".to_owned()],
                port: 5432,
                unix_directories: Vec::new(),
                ..Listen::default()
            },
            workers: NonZeroUsize::new(4),
            mode: PoolMode::Transaction,
            // There is no limit.
            limits: Limits { clients: 10_000, ..Limits::default() },
            timeouts: Timeouts {
                query_wait: some_millis(1000),
                server_connect: some_millis(1000),
                ..Timeouts::default()
            },
            auth: super::super::Auth { method: AuthMethod::Md5, ..Default::default() },
            tcp: Tcp {
                keepalive_idle: some_millis(5000),
                keepalive_interval: some_millis(5000),
                keepalive_count: NonZeroU32::new(5),
                user_timeout: some_millis(10_000),
                ..Tcp::default()
            },
            round_robin: true,
            max_prepared_statements: 0,
            log: Log { connections: false, disconnections: false, ..Log::default() },
            // There, all are passed over that are not followed.
            ignored_startup_parameters: ["extra_float_digits", "options"].map(str::to_owned).into(),
            ..Config::default()
        };
        Self {
            config,
            ban: Duration::from_secs(60),
            check_timeout: Duration::from_secs(1),
            admin: None,
            admin_secret: None,
            asker: None,
            asker_secret: None,
            server_tls: false,
            verifies: false,
        }
    }
}

impl General {
    /// What several keys say together.
    pub(super) fn config(&self) -> Config {
        let mut config = self.config.clone();
        config.tls.server.mode = Some(match (self.server_tls, self.verifies) {
            (false, _) => SslMode::Disable,
            (true, false) => SslMode::Prefer,
            (true, true) => SslMode::VerifyFull,
        });
        if config.tls.client.certificate.is_some() {
            config.tls.client.mode = Some(SslMode::Prefer);
        }
        for (name, secret) in [(&self.admin, &self.admin_secret), (&self.asker, &self.asker_secret)]
        {
            if let Some(name) = name {
                let user = User { secret: secret.clone(), ..User::default() };
                config.users.insert(name.clone(), user);
            }
        }
        config.admin_users.extend(self.admin.clone());
        config.auth.user.clone_from(&self.asker);
        config
    }
}

const DNS: &str = "names are looked up by the operating system for each new connection";
const METRICS: &str = "`--metrics HOST:PORT` of the command says where metrics are shown";

/// A query with a parameter where PgCat writes the name into it.
pub(super) fn lookup(query: &str) -> String {
    query.replace("'$1'", "$1")
}

/// Every key of the section, in the order of its name.
pub(super) const KEYS: &[Row<General>] = &[
    nothing_if_on!("admin_auth_type", "`auth.type` holds for operators, too"),
    sets("admin_password", "users.NAME.secret", "of `admin_username`", |it, value| {
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
        "the name is a parameter, not written into the text",
        |it, value| {
            it.config.auth.query = lookup(&text(value)?);
            Ok(None)
        },
    ),
    sets("auth_query_password", "users.NAME.secret", "of `auth_query_user`", |it, value| {
        it.asker_secret = Some(StoredSecret::parse(&text(value)?));
        Ok(None)
    }),
    sets("auth_query_user", "auth.user", "", |it, value| {
        it.asker = Some(text(value)?);
        Ok(None)
    }),
    nothing_if_on!("autoreload", "`RELOAD` at the console and SIGHUP read the settings again"),
    sets("ban_time", "databases.NAME.cluster.ban", "of every database", |it, value| {
        it.ban = Duration::from_secs(number(value)?);
        Ok(None)
    }),
    sets(
        "connect_timeout",
        "timeouts.server-connect",
        "and `timeouts.query-wait`: there, it bounds both",
        |it, value| {
            let limit = some_millis(number(value)?);
            it.config.timeouts.server_connect = limit;
            it.config.timeouts.query_wait = limit;
            Ok(None)
        },
    ),
    nothing_if_on!("dns_cache_enabled", DNS),
    nothing!("dns_max_ttl", DNS),
    nothing_if_on!("enable_prometheus_exporter", METRICS),
    sets("healthcheck_delay", "timeouts.server-check-delay", "", |it, value| {
        it.config.timeouts.server_check_delay = Duration::from_millis(number(value)?);
        Ok(None)
    }),
    sets(
        "healthcheck_timeout",
        "databases.NAME.cluster.check-timeout",
        "of every database; checks in the background are of this kind, too",
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
        it.config.timeouts.idle_transaction = some_millis(number(value)?);
        Ok(None)
    }),
    sets("idle_timeout", "timeouts.server-idle", "", |it, value| {
        it.config.timeouts.server_idle = some_millis(number(value)?);
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
    nothing!("prometheus_exporter_port", METRICS),
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
        it.config.timeouts.shutdown = some_millis(number(value)?);
        Ok(None)
    }),
    sets("tcp_keepalives_count", "tcp.keepalive-count", "of both legs", |it, value| {
        it.config.tcp.keepalive_count = NonZeroU32::new(number(value)?);
        Ok(None)
    }),
    sets("tcp_keepalives_idle", "tcp.keepalive-idle", "of both legs", |it, value| {
        it.config.tcp.keepalive_idle =
            Some(Duration::from_secs(number(value)?)).filter(|it| !it.is_zero());
        Ok(None)
    }),
    sets("tcp_keepalives_interval", "tcp.keepalive-interval", "of both legs", |it, value| {
        it.config.tcp.keepalive_interval =
            Some(Duration::from_secs(number(value)?)).filter(|it| !it.is_zero());
        Ok(None)
    }),
    sets("tcp_user_timeout", "tcp.user-timeout", "of both legs", |it, value| {
        it.config.tcp.user_timeout = some_millis(number(value)?);
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
    nothing_if_on!("validate_config", "settings are always checked, as a whole, before they hold"),
    sets(
        "verify_server_certificate",
        "tls.server.mode",
        "`tls.server.ca-file` has to name whose certificates servers must have",
        |it, value| {
            it.verifies = flag(value)?;
            let why = "tls.server.ca-file has to name the authorities, before this can be used";
            Ok(it.verifies.then(|| why.to_owned()))
        },
    ),
    sets("worker_threads", "workers", "", |it, value| {
        let workers = NonZeroUsize::new(number(value)?).ok_or("must be at least 1")?;
        it.config.workers = Some(workers);
        Ok(None)
    }),
];

//! The keys of the sections `[pools.NAME]`, and of their users, shards and plugins.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use howdah_route::RolePreference;

use super::{
    super::{ConfiguredRole, MirrorEntry, PoolMode, ServerEntry, ShardHash, StoredSecret},
    general::parameterized_query,
    keys::{PgcatKey, dropped, dropped_if_on, sets},
    timeout_millis,
    value::{flag, keyword, number, text},
};
use crate::Strategy;

/// The settings of a section `[pools.NAME]`.
#[derive(Debug, Default)]
pub(super) struct PgcatPool {
    pub(super) mode: PgcatPoolMode,
    pub(super) strategy: Option<Strategy>,
    pub(super) role: Option<RolePreference>,
    pub(super) splits: bool,
    pub(super) primary_reads: bool,
    pub(super) query_wait: Option<Option<Duration>>,
    pub(super) server_lifetime: Option<Duration>,
    pub(super) hash: ShardHash,
    pub(super) key: Option<(String, String)>,
    pub(super) key_hint: Option<String>,
    pub(super) shard_hint: Option<String>,
    pub(super) default_shard: PgcatDefaultShard,
    pub(super) auth_query: Option<String>,
    pub(super) auth_user: Option<String>,
    pub(super) auth_secret: Option<StoredSecret>,
    pub(super) statements: u32,
    pub(super) connect_query: Option<String>,
    pub(super) users: Vec<PgcatUser>,
    pub(super) shards: BTreeMap<u32, PgcatShard>,
}

/// The mode of a pool; transaction by default, as in PgCat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PgcatPoolMode(pub(super) PoolMode);

impl Default for PgcatPoolMode {
    fn default() -> Self {
        Self(PoolMode::Transaction)
    }
}

/// The shard for requests that do not select one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PgcatDefaultShard {
    One(u32),
    Any,
}

impl Default for PgcatDefaultShard {
    fn default() -> Self {
        Self::One(0)
    }
}

/// The settings of a user of a pool.
#[derive(Debug, Default)]
pub(super) struct PgcatUser {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) secret: Option<StoredSecret>,
    pub(super) server_name: Option<String>,
    pub(super) server_secret: Option<StoredSecret>,
    pub(super) size: Option<u32>,
    pub(super) min_size: Option<u32>,
    pub(super) mode: Option<PoolMode>,
    pub(super) query_timeout: Option<Duration>,
    pub(super) query_wait: Option<Option<Duration>>,
}

/// The settings of a shard of a pool.
#[derive(Debug, Default)]
pub(super) struct PgcatShard {
    pub(super) database: Option<String>,
    pub(super) servers: Vec<ServerEntry>,
    pub(super) mirrors: Vec<MirrorEntry>,
}

const MODES: &[(&str, PoolMode)] =
    &[("transaction", PoolMode::Transaction), ("session", PoolMode::Session)];
const ALL_POOLS: &str = "applies to all pools: `timeouts.server-idle`";
const ACTIVITY: &str = "reads are not sent to the primary because of recent writes to their tables; a request \
                        that must see its own writes needs `SET SERVER ROLE TO 'primary'`, or must be \
                        in the same transaction";

/// All keys of a pool, ordered by name.
pub(super) const KEYS: &[PgcatKey<PgcatPool>] = &[
    sets(
        "auth_query",
        "auth-query",
        "the user name is a parameter instead of part of the text",
        |it, value| {
            it.auth_query = Some(parameterized_query(&text(value)?));
            Ok(None)
        },
    ),
    sets("auth_query_password", "users.NAME.secret", "for `auth_query_user`", |it, value| {
        it.auth_secret = Some(StoredSecret::parse(&text(value)?));
        Ok(None)
    }),
    sets("auth_query_user", "auth-user", "", |it, value| {
        it.auth_user = Some(text(value)?);
        Ok(None)
    }),
    sets(
        "automatic_sharding_key",
        "sharding.tables",
        "several tables, and several columns per table, are possible",
        |it, value| {
            let name = text(value)?.replace('"', "");
            let (table, column) =
                name.split_once('.').ok_or("must be a table and a column: `table.column`")?;
            if table == "*" || table.is_empty() || column.is_empty() || column.contains('.') {
                return Ok(Some("list the tables in `sharding.tables`".to_owned()));
            }
            it.key = Some((table.to_owned(), column.to_owned()));
            Ok(None)
        },
    ),
    dropped!(
        "checkout_failure_limit",
        "a client that waits too long gets an error and is disconnected: `query-wait-timeout`"
    ),
    PgcatKey {
        name: "cleanup_server_connections",
        ours: "",
        difference: "session state is always reset before the next client gets the server",
        read: |_, value| {
            let why = "session state is always reset before the next client gets the server";
            Ok((!flag(value)?).then(|| why.to_owned()))
        },
    },
    sets(
        "connect_timeout",
        "query-wait-timeout",
        "how long a client waits for a server",
        |it, value| {
            it.query_wait = Some(timeout_millis(number(value)?));
            Ok(None)
        },
    ),
    dropped_if_on!("db_activity_based_routing", ACTIVITY),
    dropped!("db_activity_init_delay", ACTIVITY),
    dropped!("db_activity_ttl", ACTIVITY),
    sets("default_role", "cluster.role", "", |it, value| {
        let words = [
            ("any", RolePreference::Any),
            ("primary", RolePreference::Primary),
            ("replica", RolePreference::Replica),
        ];
        it.role = Some(keyword(value, &words)?);
        Ok(None)
    }),
    sets(
        "default_shard",
        "sharding.default",
        "`random` and `random_healthy` become `any`: for reads only, at a healthy shard",
        |it, value| {
            let name = text(value)?;
            if let Some(number) = name.strip_prefix("shard_").and_then(|it| it.parse().ok()) {
                it.default_shard = PgcatDefaultShard::One(number);
                return Ok(None);
            }
            keyword(value, &[("random", ()), ("random_healthy", ())])
                .map_err(|_| format!("{name:?} is not one of shard_N, random, random_healthy"))?;
            it.default_shard = PgcatDefaultShard::Any;
            Ok(Some("only reads go to any shard: writes need a shard or a sharding key".to_owned()))
        },
    ),
    dropped!("idle_timeout", ALL_POOLS),
    sets("load_balancing_mode", "cluster.strategy", "", |it, value| {
        let words = [
            ("random", Strategy::Random),
            ("loc", Strategy::LeastOutstanding),
            ("least_outstanding_connections", Strategy::LeastOutstanding),
        ];
        it.strategy = Some(keyword(value, &words)?);
        Ok(None)
    }),
    dropped_if_on!("log_client_parameter_status_changes", "changes of parameters are not logged"),
    sets("pool_mode", "mode", "", |it, value| {
        it.mode = PgcatPoolMode(keyword(value, MODES)?);
        Ok(None)
    }),
    sets(
        "prepared_statements_cache_size",
        "max-prepared-statements",
        "the largest value of all pools",
        |it, value| {
            it.statements = number(value)?;
            Ok(None)
        },
    ),
    sets("primary_reads_enabled", "routing.primary-reads", "", |it, value| {
        it.primary_reads = flag(value)?;
        Ok(None)
    }),
    PgcatKey {
        name: "query_parser_enabled",
        ours: "",
        difference: "statements are parsed if `cluster.role` or `sharding.tables` require it",
        read: |_, value| flag(value).map(|_| None),
    },
    dropped!("query_parser_max_length", "the cost of parsing a statement is limited internally"),
    sets(
        "query_parser_read_write_splitting",
        "cluster.role",
        "`auto`: by PostgreSQL's grammar; the primary in ambiguous cases",
        |it, value| {
            it.splits = flag(value)?;
            Ok(None)
        },
    ),
    dropped!("regex_search_limit", "hints are recognized in all comments"),
    sets("server_lifetime", "server-lifetime", "", |it, value| {
        it.server_lifetime = Some(Duration::from_millis(number(value)?));
        Ok(None)
    }),
    sets(
        "shard_id_regex",
        "routing.hint-names.shard",
        "its keyword; an expression not of the form `/\\* keyword: (\\d+) \\*/` is not converted",
        |it, value| Ok(read_hint(&mut it.shard_hint, &text(value)?)),
    ),
    sets(
        "sharding_function",
        "sharding.key",
        "`[\"bigint\"]`; for `sha1` also `sharding.hash`",
        |it, value| {
            let functions = [("pg_bigint_hash", ShardHash::Postgresql), ("sha1", ShardHash::Sha1)];
            it.hash = keyword(value, &functions)?;
            Ok(None)
        },
    ),
    sets(
        "sharding_key_regex",
        "routing.hint-names.key",
        "its keyword; an expression not of the form `/\\* keyword: (\\d+) \\*/` is not converted",
        |it, value| Ok(read_hint(&mut it.key_hint, &text(value)?)),
    ),
    dropped!("table_mutation_cache_ms_ttl", ACTIVITY),
];

/// Extracts the keyword of a hint from a regular expression of the form that PgCat's manual shows.
/// Returns a remark for other expressions.
fn read_hint(into: &mut Option<String>, regex: &str) -> Option<String> {
    let plain = regex.replace([' ', '\\'], "");
    let word = plain.strip_prefix("/*").and_then(|rest| rest.strip_suffix("(d+)*/"));
    let word = word.map(|word| word.trim_end_matches([':', '=']));
    let is_word = |word: &&str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    match word.filter(is_word) {
        Some(word) => {
            *into = Some(word.to_owned());
            None
        }
        None => Some("hints are recognized by a keyword: set `routing.hint-names`".to_owned()),
    }
}

/// All keys of a user, ordered by name.
pub(super) const USERS: &[PgcatKey<PgcatUser>] = &[
    PgcatKey {
        name: "auth_type",
        ours: "",
        difference: "`auth.type` applies to all users; a user of type `trust` needs a password",
        read: |_, value| {
            let is_trust = keyword(value, &[("md5", false), ("trust", true)])?;
            let why = "this user needs a password now; trusted users are configured by rules in \
                       `auth.hba-file`";
            Ok(is_trust.then(|| why.to_owned()))
        },
    },
    sets(
        "connect_timeout",
        "query-wait-timeout",
        "how long a client waits for a server",
        |it, value| {
            it.query_wait = Some(timeout_millis(number(value)?));
            Ok(None)
        },
    ),
    dropped!("idle_timeout", ALL_POOLS),
    sets(
        "min_pool_size",
        "databases.NAME.min-size",
        "the largest value of the pool's users",
        |it, value| {
            it.min_size = Some(number(value)?);
            Ok(None)
        },
    ),
    sets("password", "secret", "", |it, value| {
        it.secret = Some(StoredSecret::parse(&text(value)?));
        Ok(None)
    }),
    sets("pool_mode", "mode", "", |it, value| {
        it.mode = Some(keyword(value, MODES)?);
        Ok(None)
    }),
    sets(
        "pool_size",
        "pool-size",
        "for each server, as in PgCat; applies to all databases",
        |it, value| {
            it.size = Some(number(value)?);
            Ok(None)
        },
    ),
    dropped!("server_lifetime", "applies to the database: its `server-lifetime`"),
    sets(
        "server_password",
        "databases.NAME.secret",
        "only if the pool has one user; see `server_username`",
        |it, value| {
            it.server_secret = Some(StoredSecret::parse(&text(value)?));
            Ok(None)
        },
    ),
    sets(
        "server_username",
        "databases.NAME.user",
        "only if the pool has one user; otherwise users log in to servers under their own names",
        |it, value| {
            it.server_name = Some(text(value)?);
            Ok(None)
        },
    ),
    sets(
        "statement_timeout",
        "query-timeout",
        "the statement is cancelled and the client disconnected; the server is not banned",
        |it, value| {
            it.query_timeout = timeout_millis(number(value)?);
            Ok(None)
        },
    ),
    sets("username", "users.NAME", "", |it, value| {
        it.name = text(value)?;
        Ok(None)
    }),
];

/// All keys of a shard, ordered by name.
pub(super) const SHARDS: &[PgcatKey<PgcatShard>] = &[
    sets("database", "dbname", "", |it, value| {
        it.database = Some(text(value)?);
        Ok(None)
    }),
    sets(
        "mirrors",
        "mirrors",
        "for all clients of the pool, whichever server they use; only for a pool of one shard in transaction mode",
        |it, value| {
            const FORM: &str = "must be a list of [\"host\", port, number of the server]";
            for mirror in value.as_array().ok_or(FORM)? {
                let parts = mirror.get_ref().as_array().ok_or(FORM)?;
                let part = |at: usize| parts.get(at).map(toml::Spanned::get_ref).ok_or(FORM);
                let (host, port) = (text(part(0)?)?, number(part(1)?)?);
                // The same mirror may be listed for several servers.
                let is_known = |it: &MirrorEntry| it.host == host && it.port == Some(port);
                if !it.mirrors.iter().any(is_known) {
                    it.mirrors.push(MirrorEntry::new(host, Some(port)));
                }
            }
            Ok(None)
        },
    ),
    sets(
        "servers",
        "servers",
        "with the configured roles; servers without `role` have theirs detected",
        |it, value| {
            const FORM: &str = "must be a list of [\"host\", port, \"primary\" or \"replica\"]";
            let roles =
                [("primary", ConfiguredRole::Primary), ("replica", ConfiguredRole::Replica)];
            let mut twice = None;
            for server in value.as_array().ok_or(FORM)? {
                let parts = server.get_ref().as_array().ok_or(FORM)?;
                let part = |at: usize| parts.get(at).map(toml::Spanned::get_ref).ok_or(FORM);
                let (host, port) = (text(part(0)?)?, number(part(1)?)?);
                let role = keyword(part(2)?, &roles)?;
                let weight = NonZeroU32::MIN;
                // PgCat needs a single server to be listed both as primary and as replica. Here a
                // primary also serves reads that prefer replicas.
                let is_same = |it: &&mut ServerEntry| it.host == host && it.port == Some(port);
                match it.servers.iter_mut().find(is_same) {
                    None => it.servers.push(ServerEntry { host, port: Some(port), role, weight }),
                    Some(known) => {
                        if role == ConfiguredRole::Primary {
                            known.role = role;
                        }
                        twice.get_or_insert_with(|| {
                            format!(
                                "{host}:{port} is listed more than once: it is imported once, as {}",
                                known.role.as_str()
                            )
                        });
                    }
                }
            }
            Ok(twice)
        },
    ),
];

/// All plugins of a pool, ordered by name.
pub(super) const PLUGINS: &[PgcatKey<PgcatPool>] = &[
    PgcatKey {
        name: "intercept",
        ours: "",
        difference: "the pooler answers no statements except its own commands",
        read: |_, value| {
            let why = "the pooler answers no statements except its own commands";
            Ok(is_enabled(value).then(|| why.to_owned()))
        },
    },
    sets("prewarmer", "connect-query", "its queries, joined", |it, value| {
        let queries = value.as_table().and_then(|table| table.get("queries"));
        if let Some(queries) = queries.filter(|_| is_enabled(value)) {
            let list = queries.get_ref().as_array().ok_or("queries must be a list of strings")?;
            let list = list.iter().map(|query| text(query.get_ref()));
            it.connect_query = Some(list.collect::<Result<Vec<_>, _>>()?.join("; "));
        }
        Ok(None)
    }),
    PgcatKey {
        name: "query_logger",
        ours: "",
        difference: "use the server's log, which `howdah capture` reads: `log_min_duration_statement = 0`",
        read: |_, value| {
            let why = "use the server's log, which `howdah capture` reads: `log_min_duration_statement = 0`";
            Ok(is_enabled(value).then(|| why.to_owned()))
        },
    },
    PgcatKey {
        name: "table_access",
        ours: "",
        difference: "use PostgreSQL's GRANT and REVOKE: **tables that it protected are accessible to clients**",
        read: |_, value| {
            let why =
                "tables that it protected are now ACCESSIBLE to clients: use REVOKE at the server";
            Ok(is_enabled(value).then(|| why.to_owned()))
        },
    },
];

fn is_enabled(value: &toml::de::DeValue<'_>) -> bool {
    let enabled = value.as_table().and_then(|table| table.get("enabled"));
    enabled.is_none_or(|it| it.get_ref().as_bool() != Some(false))
}

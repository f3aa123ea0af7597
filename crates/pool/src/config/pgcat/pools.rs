//! The sections `[pools.NAME]`, with their users, shards and plugins.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use howdah_route::RolePreference;

use super::{
    super::{ConfiguredRole, MirrorEntry, PoolMode, ServerEntry, ShardHash, StoredSecret},
    general::lookup,
    keys::{Row, nothing, nothing_if_on, sets},
    some_millis,
    value::{flag, number, text, word},
};
use crate::cluster::Strategy;

/// A pool as its keys say it.
#[derive(Debug, Default)]
pub(super) struct Pool {
    pub(super) mode: Mode,
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
    pub(super) default_shard: DefaultShard,
    pub(super) auth_query: Option<String>,
    pub(super) auth_user: Option<String>,
    pub(super) auth_secret: Option<StoredSecret>,
    pub(super) statements: u32,
    pub(super) connect_query: Option<String>,
    pub(super) users: Vec<User>,
    pub(super) shards: BTreeMap<u32, Shard>,
}

/// Pool mode; transaction unless something else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode(pub(super) PoolMode);

impl Default for Mode {
    fn default() -> Self {
        Self(PoolMode::Transaction)
    }
}

/// Where requests go that nothing sends somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DefaultShard {
    One(u32),
    Any,
}

impl Default for DefaultShard {
    fn default() -> Self {
        Self::One(0)
    }
}

/// A user of a pool.
#[derive(Debug, Default)]
pub(super) struct User {
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

/// A shard of a pool.
#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) database: Option<String>,
    pub(super) servers: Vec<ServerEntry>,
    pub(super) mirrors: Vec<MirrorEntry>,
}

const MODES: &[(&str, PoolMode)] =
    &[("transaction", PoolMode::Transaction), ("session", PoolMode::Session)];
const ALL_POOLS: &str = "holds for all pools here: `timeouts.server-idle`";
const ACTIVITY: &str = "reads that follow a write are not sent to the primary by what was written; \
                        a request that must see its own writes says `SET SERVER ROLE TO 'primary'`, \
                        or is in one transaction with them";

/// Every key of a pool, in the order of its name.
pub(super) const KEYS: &[Row<Pool>] = &[
    sets(
        "auth_query",
        "auth-query",
        "the name is a parameter, not written into the text",
        |it, value| {
            it.auth_query = Some(lookup(&text(value)?));
            Ok(None)
        },
    ),
    sets("auth_query_password", "users.NAME.secret", "of `auth_query_user`", |it, value| {
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
        "more tables can be named, and several columns of one",
        |it, value| {
            let said = text(value)?.replace('"', "");
            let (table, column) =
                said.split_once('.').ok_or("must be a table and a column: `table.column`")?;
            if table == "*" || table.is_empty() || column.is_empty() || column.contains('.') {
                return Ok(Some("name the tables in `sharding.tables`".to_owned()));
            }
            it.key = Some((table.to_owned(), column.to_owned()));
            Ok(None)
        },
    ),
    nothing!(
        "checkout_failure_limit",
        "a client that waits too long is told so and disconnected at once: `query-wait-timeout`"
    ),
    Row {
        name: "cleanup_server_connections",
        ours: "",
        note: "what a client leaves behind is always reset before the next gets its server",
        read: |_, value| {
            let why = "what a client leaves behind is always reset before the next gets its server";
            Ok((!flag(value)?).then(|| why.to_owned()))
        },
    },
    sets("connect_timeout", "query-wait-timeout", "how long a client waits", |it, value| {
        it.query_wait = Some(some_millis(number(value)?));
        Ok(None)
    }),
    nothing_if_on!("db_activity_based_routing", ACTIVITY),
    nothing!("db_activity_init_delay", ACTIVITY),
    nothing!("db_activity_ttl", ACTIVITY),
    sets("default_role", "cluster.role", "", |it, value| {
        let words = [
            ("any", RolePreference::Any),
            ("primary", RolePreference::Primary),
            ("replica", RolePreference::Replica),
        ];
        it.role = Some(word(value, &words)?);
        Ok(None)
    }),
    sets(
        "default_shard",
        "sharding.default",
        "`random` and `random_healthy` are `any`: reads only, at a shard that is up",
        |it, value| {
            let said = text(value)?;
            if let Some(number) = said.strip_prefix("shard_").and_then(|it| it.parse().ok()) {
                it.default_shard = DefaultShard::One(number);
                return Ok(None);
            }
            word(value, &[("random", ()), ("random_healthy", ())])
                .map_err(|_| format!("{said:?} is none of shard_N, random, random_healthy"))?;
            it.default_shard = DefaultShard::Any;
            Ok(Some("only reads go to any shard: what writes has to say to which".to_owned()))
        },
    ),
    nothing!("idle_timeout", ALL_POOLS),
    sets("load_balancing_mode", "cluster.strategy", "", |it, value| {
        let words = [
            ("random", Strategy::Random),
            ("loc", Strategy::LeastOutstanding),
            ("least_outstanding_connections", Strategy::LeastOutstanding),
        ];
        it.strategy = Some(word(value, &words)?);
        Ok(None)
    }),
    nothing_if_on!("log_client_parameter_status_changes", "the log does not tell of these"),
    sets("pool_mode", "mode", "", |it, value| {
        it.mode = Mode(word(value, MODES)?);
        Ok(None)
    }),
    sets(
        "prepared_statements_cache_size",
        "max-prepared-statements",
        "of all pools: the largest number that one of them has",
        |it, value| {
            it.statements = number(value)?;
            Ok(None)
        },
    ),
    sets("primary_reads_enabled", "routing.primary-reads", "", |it, value| {
        it.primary_reads = flag(value)?;
        Ok(None)
    }),
    Row {
        name: "query_parser_enabled",
        ours: "",
        note: "statements are looked at where `cluster.role` or `sharding.tables` need it",
        read: |_, value| flag(value).map(|_| None),
    },
    nothing!("query_parser_max_length", "what a statement may cost has an end of its own"),
    sets(
        "query_parser_read_write_splitting",
        "cluster.role",
        "`auto`: by PostgreSQL's grammar, in doubt to the primary",
        |it, value| {
            it.splits = flag(value)?;
            Ok(None)
        },
    ),
    nothing!("regex_search_limit", "hints are looked for in comments, wherever they stand"),
    sets("server_lifetime", "server-lifetime", "", |it, value| {
        it.server_lifetime = Some(Duration::from_millis(number(value)?));
        Ok(None)
    }),
    sets(
        "shard_id_regex",
        "routing.hint-names.shard",
        "the word in it; an expression that is not `/\\* word: (\\d+) \\*/` is not carried over",
        |it, value| Ok(hint(&mut it.shard_hint, &text(value)?)),
    ),
    sets(
        "sharding_function",
        "sharding.key",
        "`[\"bigint\"]`; and `sharding.hash`, if it is `sha1`",
        |it, value| {
            let functions = [("pg_bigint_hash", ShardHash::Postgresql), ("sha1", ShardHash::Sha1)];
            it.hash = word(value, &functions)?;
            Ok(None)
        },
    ),
    sets(
        "sharding_key_regex",
        "routing.hint-names.key",
        "the word in it; an expression that is not `/\\* word: (\\d+) \\*/` is not carried over",
        |it, value| Ok(hint(&mut it.key_hint, &text(value)?)),
    ),
    nothing!("table_mutation_cache_ms_ttl", ACTIVITY),
];

/// The word of a hint, out of an expression of the form that PgCat's manual has.
fn hint(into: &mut Option<String>, regex: &str) -> Option<String> {
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
        None => Some("hints are known by a word here: `routing.hint-names`".to_owned()),
    }
}

/// Every key of a user, in the order of its name.
pub(super) const USERS: &[Row<User>] = &[
    Row {
        name: "auth_type",
        ours: "",
        note: "`auth.type` holds for all users; a user of type `trust` is asked for a password",
        read: |_, value| {
            let is_trust = word(value, &[("md5", false), ("trust", true)])?;
            let why = "who is trusted and who not is said by rules here: `auth.hba-file`; \
                       this user is asked for a password";
            Ok(is_trust.then(|| why.to_owned()))
        },
    },
    sets("connect_timeout", "query-wait-timeout", "how long a client waits", |it, value| {
        it.query_wait = Some(some_millis(number(value)?));
        Ok(None)
    }),
    nothing!("idle_timeout", ALL_POOLS),
    sets(
        "min_pool_size",
        "databases.NAME.min-size",
        "the largest of the pool's users",
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
        it.mode = Some(word(value, MODES)?);
        Ok(None)
    }),
    sets("pool_size", "pool-size", "for each server, as there; of all databases", |it, value| {
        it.size = Some(number(value)?);
        Ok(None)
    }),
    nothing!("server_lifetime", "holds for the database here: its `server-lifetime`"),
    sets(
        "server_password",
        "databases.NAME.secret",
        "where the pool has one user; see `server_username`",
        |it, value| {
            it.server_secret = Some(StoredSecret::parse(&text(value)?));
            Ok(None)
        },
    ),
    sets(
        "server_username",
        "databases.NAME.user",
        "where the pool has one user; users of others are themselves at servers",
        |it, value| {
            it.server_name = Some(text(value)?);
            Ok(None)
        },
    ),
    sets(
        "statement_timeout",
        "query-timeout",
        "the client is disconnected, and the statement cancelled; no server is banned for it",
        |it, value| {
            it.query_timeout = some_millis(number(value)?);
            Ok(None)
        },
    ),
    sets("username", "users.NAME", "", |it, value| {
        it.name = text(value)?;
        Ok(None)
    }),
];

/// Every key of a shard, in the order of its name.
pub(super) const SHARDS: &[Row<Shard>] = &[
    sets("database", "dbname", "", |it, value| {
        it.database = Some(text(value)?);
        Ok(None)
    }),
    sets(
        "mirrors",
        "mirrors",
        "of all the pool's clients, whichever server they have; of a pool of one shard in transaction mode",
        |it, value| {
            const FORM: &str = "must be a list of [\"host\", port, number of the server]";
            for mirror in value.as_array().ok_or(FORM)? {
                let parts = mirror.get_ref().as_array().ok_or(FORM)?;
                let part = |at: usize| parts.get(at).map(::toml::Spanned::get_ref).ok_or(FORM);
                let (host, port) = (text(part(0)?)?, number(part(1)?)?);
                // One may be named for each of several servers.
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
        "as they are called; without `role`, which of them is the primary is found out, and followed",
        |it, value| {
            const FORM: &str = "must be a list of [\"host\", port, \"primary\" or \"replica\"]";
            let roles =
                [("primary", ConfiguredRole::Primary), ("replica", ConfiguredRole::Replica)];
            let mut twice = None;
            for server in value.as_array().ok_or(FORM)? {
                let parts = server.get_ref().as_array().ok_or(FORM)?;
                let part = |at: usize| parts.get(at).map(::toml::Spanned::get_ref).ok_or(FORM);
                let (host, port) = (text(part(0)?)?, number(part(1)?)?);
                let role = word(part(2)?, &roles)?;
                let weight = NonZeroU32::MIN;
                // A stage of one server is both there. Here any server serves reads that a replica could.
                let is_same = |it: &&mut ServerEntry| it.host == host && it.port == Some(port);
                match it.servers.iter_mut().find(is_same) {
                    None => it.servers.push(ServerEntry { host, port: Some(port), role, weight }),
                    Some(known) => {
                        if role == ConfiguredRole::Primary {
                            known.role = role;
                        }
                        twice.get_or_insert_with(|| {
                            format!(
                                "{host}:{port} is there more than once: it is kept once, as {}",
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

/// Every plugin, in the order of its name.
pub(super) const PLUGINS: &[Row<Pool>] = &[
    Row {
        name: "intercept",
        ours: "",
        note: "no statement is answered by the pooler but its own commands",
        read: |_, value| {
            let why = "no statement is answered by the pooler but its own commands";
            Ok(is_enabled(value).then(|| why.to_owned()))
        },
    },
    sets("prewarmer", "connect-query", "its queries, as one text", |it, value| {
        let queries = value.as_table().and_then(|table| table.get("queries"));
        if let Some(queries) = queries.filter(|_| is_enabled(value)) {
            let list = queries.get_ref().as_array().ok_or("queries must be a list of texts")?;
            let list = list.iter().map(|query| text(query.get_ref()));
            it.connect_query = Some(list.collect::<Result<Vec<_>, _>>()?.join("; "));
        }
        Ok(None)
    }),
    Row {
        name: "query_logger",
        ours: "",
        note: "the server's log has what `howdah capture` reads: `log_min_duration_statement = 0`",
        read: |_, value| {
            let why = "the server's log has what `howdah capture` reads: `log_min_duration_statement = 0`";
            Ok(is_enabled(value).then(|| why.to_owned()))
        },
    },
    Row {
        name: "table_access",
        ours: "",
        note: "who may read what is for PostgreSQL's GRANT and REVOKE to say: **tables it kept from \
               clients are open to them**",
        read: |_, value| {
            let why =
                "tables that it kept from clients are OPEN to them now: use REVOKE at the server";
            Ok(is_enabled(value).then(|| why.to_owned()))
        },
    },
];

fn is_enabled(value: &::toml::de::DeValue<'_>) -> bool {
    let enabled = value.as_table().and_then(|table| table.get("enabled"));
    enabled.is_none_or(|it| it.get_ref().as_bool() != Some(false))
}

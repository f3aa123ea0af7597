//! A converted `pgcat.toml` with real servers.

use std::path::Path;

use howdah_lab::{Cluster, client_tool, skip_without_postgres};
use howdah_pool_config::Config;

use crate::support::{checked_stdout, start_pooler_with};

#[test]
fn converted_file_supports_pgcat_shard_commands() {
    let Some(server) = skip_without_postgres("pgcat", Cluster::builder().start()) else { return };
    let psql = |uri: &str, more: &[&str]| {
        let own = server.binaries().program("psql");
        let program =
            if own.is_file() { own } else { client_tool("psql").expect("psql is installed") };
        let mut command = std::process::Command::new(program);
        command.args(["-XAtq", "-v", "ON_ERROR_STOP=1", uri]).env("PGPASSWORD", "sesame");
        command.args(more.iter().flat_map(|sql| ["-c", sql]));
        checked_stdout(command.output().unwrap())
    };
    let direct = |database: &str, sql: &str| psql(&server.uri(database), &[sql]);
    direct("postgres", "create role sharding_user login password 'sesame'");
    for shard in 0..2 {
        let database = format!("shard{shard}");
        direct("postgres", &format!("create database {database} owner sharding_user"));
        direct(&database, "create table data (id bigint, value text); grant all on data to public");
    }
    let port = server.port();
    let toml = format!(
        "[general]\nhost = '127.0.0.1'\nport = 0\nconnect_timeout = 30000\n\
         admin_username = 'boss'\nadmin_password = 'sesame'\n\
         [pools.sharded_db]\nquery_parser_enabled = true\nautomatic_sharding_key = 'data.id'\n\
         primary_reads_enabled = true\n\
         [pools.sharded_db.users.0]\nusername = 'sharding_user'\npassword = 'sesame'\npool_size = 5\n\
         [pools.sharded_db.shards.0]\nservers = [['127.0.0.1', {port}, 'primary']]\n\
         database = 'shard0'\n\
         [pools.sharded_db.shards.1]\nservers = [['127.0.0.1', {port}, 'primary']]\n\
         database = 'shard1'\n"
    );
    let pooler =
        start_pooler_with(&Config::import_pgcat(&toml, Path::new("/etc/pgcat.toml")).unwrap());
    let port = pooler.addresses()[0].port();
    let at =
        |user: &str, database: &str| format!("postgresql://{user}@127.0.0.1:{port}/{database}");
    let through = |sql: &[&str]| psql(&at("sharding_user", "sharded_db"), sql);
    assert_eq!(through(&["set shard to '1'", "select current_database()"]), "shard1");
    assert_eq!(through(&["set sharding key to '1'", "show shard"]), "0");
    for id in 0..20 {
        through(&[&format!("insert into data (id, value) values ({id}, 'x')")]);
    }
    // The rows are on the shards given by PostgreSQL's hash partitioning.
    direct("postgres", "create table parted (id bigint) partition by hash (id)");
    for shard in 0..2 {
        let wrong = format!(
            "select count(*) from data where not \
             satisfies_hash_partition('parted'::regclass, 2, {shard}, id)"
        );
        let database = format!("shard{shard}");
        direct(&database, "create table parted (id bigint) partition by hash (id)");
        assert_eq!(direct(&database, &wrong), "0", "shard {shard}");
    }
    let counts = [0, 1].map(|shard| direct(&format!("shard{shard}"), "select count(*) from data"));
    assert_eq!(counts.iter().map(|count| count.parse::<u32>().unwrap()).sum::<u32>(), 20);
    assert_ne!(counts[0], "0");
    assert!(psql(&at("boss", "pgbouncer"), &["show databases"]).contains("sharded_db"));
}

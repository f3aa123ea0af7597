//! Common client programs through the pooler.

use howdah_lab::{Cluster, skip_without_postgres};

use crate::support::{PoolFixture, checked_stdout, start_pooler_in_mode};

#[test]
fn psql_works_in_every_mode() {
    let Some(mut fixture) = PoolFixture::start("psql", "") else { return };
    for mode in ["session", "transaction", "statement"] {
        fixture.pooler = start_pooler_in_mode(&fixture.server, mode, "");
        assert_eq!(fixture.psql(&["select 1", "select 2"]), "1\n2");
        let big = fixture.psql(&["select repeat('x', 5000000)"]);
        assert_eq!(big.len(), 5_000_000);
        let error = fixture.run_program("psql", &["-XAtq", "-c", "select 1/0"]);
        assert!(String::from_utf8_lossy(&error.stderr).contains("division by zero"));
    }
}

/// Fifty clients, two server connections, all protocols of pgbench.
fn check_pgbench(major: u32) {
    let builder = Cluster::builder().name("pool-pgbench").major(major);
    let Some(server) = skip_without_postgres("pgbench", builder.start()) else { return };
    let pooler = start_pooler_in_mode(&server, "transaction", "sizes = { pool = 2 }");
    let fixture = PoolFixture { server, pooler };
    checked_stdout(fixture.run_program("pgbench", &["-i", "-q", "-s", "1"]));
    let run = |args: &[&str], expected: &str| {
        let report = checked_stdout(fixture.run_program("pgbench", &[&["-n"], args].concat()));
        assert!(report.contains(&format!("processed: {expected}/{expected}")), "{report}");
    };
    for protocol in ["simple", "extended", "prepared"] {
        run(&["-S", "-c", "50", "-t", "10", "-M", protocol], "500");
        run(&["-S", "-c", "5", "-t", "5", "-C", "-M", protocol], "25");
        // One thread per client: a client that prepares blocks the others of its thread.
        run(&["-c", "50", "-j", "50", "-t", "2", "-M", protocol], "100");
    }
    let sums = "select (select sum(abalance) from pgbench_accounts) = sum(delta), count(*) \
                from pgbench_history";
    assert_eq!(fixture.psql(&[sums]), "t|300");
    let servers = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    // Two of the pool and the one that runs this query.
    assert_eq!(fixture.query_server(servers), "3");
}

#[test]
fn pgbench_runs_in_every_protocol_on_postgresql_15() {
    check_pgbench(15);
}

#[test]
fn pgbench_runs_in_every_protocol_on_postgresql_18() {
    check_pgbench(18);
}

#[test]
fn copy_works_in_both_directions() {
    let Some(fixture) = PoolFixture::start("copy", "") else { return };
    fixture.psql(&["create table numbers (n int)"]);
    let command = fixture.command("psql");
    let script = "seq 1 200000 | \"$0\" -XAtq -c '\\copy numbers from stdin' \
                  && \"$0\" -XAtq -c '\\copy numbers to stdout' | wc -l";
    let program = command.get_program().to_owned();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).arg(program).env_clear().env("PATH", "/usr/bin:/bin");
    shell.envs(command.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))));
    assert_eq!(checked_stdout(shell.output().unwrap()), "200000");
    assert_eq!(fixture.psql(&["select sum(n) from numbers"]), "20000100000");
}

//! Programs that people have, through the pooler.

use howdah_lab::{Cluster, or_say_why_not};

use crate::support::{Stage, pooler_in, said};

#[test]
fn psql_works_in_every_mode() {
    let Some(mut stage) = Stage::set("psql", "") else { return };
    for mode in ["session", "transaction", "statement"] {
        stage.pooler = pooler_in(&stage.server, mode, "");
        assert_eq!(stage.psql(&["select 1", "select 2"]), "1\n2");
        let big = stage.psql(&["select repeat('x', 5000000)"]);
        assert_eq!(big.len(), 5_000_000);
        let error = stage.run("psql", &["-XAtq", "-c", "select 1/0"]);
        assert!(String::from_utf8_lossy(&error.stderr).contains("division by zero"));
    }
}

/// Fifty clients, two servers, every way that pgbench has of talking to them.
fn pgbench_runs_at(major: u32) {
    let builder = Cluster::builder().name("pool-pgbench").major(major);
    let Some(server) = or_say_why_not("pgbench", builder.start()) else { return };
    let pooler = pooler_in(&server, "transaction", "sizes = { pool = 2 }");
    let stage = Stage { server, pooler };
    said(stage.run("pgbench", &["-i", "-q", "-s", "1"]));
    let run = |args: &[&str], expected: &str| {
        let report = said(stage.run("pgbench", &[&["-n"], args].concat()));
        assert!(report.contains(&format!("processed: {expected}/{expected}")), "{report}");
    };
    for protocol in ["simple", "extended", "prepared"] {
        run(&["-S", "-c", "50", "-t", "10", "-M", protocol], "500");
        run(&["-S", "-c", "5", "-t", "5", "-C", "-M", protocol], "25");
        // A thread for each: one that prepares blocks the others of its thread.
        run(&["-c", "50", "-j", "50", "-t", "2", "-M", protocol], "100");
    }
    let sums = "select (select sum(abalance) from pgbench_accounts) = sum(delta), count(*) \
                from pgbench_history";
    assert_eq!(stage.psql(&[sums]), "t|300");
    let servers = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    // Two of the pool, and this one.
    assert_eq!(stage.direct(servers), "3");
}

#[test]
fn pgbench_runs_in_every_protocol_on_postgresql_15() {
    pgbench_runs_at(15);
}

#[test]
fn pgbench_runs_in_every_protocol_on_postgresql_18() {
    pgbench_runs_at(18);
}

#[test]
fn copy_goes_both_ways() {
    let Some(stage) = Stage::set("copy", "") else { return };
    stage.psql(&["create table numbers (n int)"]);
    let command = stage.command("psql");
    let script = "seq 1 200000 | \"$0\" -XAtq -c '\\copy numbers from stdin' \
                  && \"$0\" -XAtq -c '\\copy numbers to stdout' | wc -l";
    let program = command.get_program().to_owned();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).arg(program).env_clear().env("PATH", "/usr/bin:/bin");
    shell.envs(command.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))));
    assert_eq!(said(shell.output().unwrap()), "200000");
    assert_eq!(stage.psql(&["select sum(n) from numbers"]), "20000100000");
}

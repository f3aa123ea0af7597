//! Programs that people have, through the pooler.

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

#[test]
fn pgbench_runs_in_both_protocols_and_with_a_connection_per_transaction() {
    let Some(stage) = Stage::set("pgbench", "sizes = { pool = 2 }") else { return };
    said(stage.run("pgbench", &["-i", "-q", "-s", "1"]));
    for protocol in ["simple", "extended"] {
        for more in [&[][..], &["-C"]] {
            let mut args = vec!["-n", "-S", "-c", "10", "-t", "20", "-M", protocol];
            args.extend(more);
            let report = said(stage.run("pgbench", &args));
            assert!(report.contains("actually processed: 200/200"), "{protocol}: {report}");
        }
        let report = said(stage.run("pgbench", &["-n", "-c", "5", "-t", "10", "-M", protocol]));
        assert!(report.contains("actually processed: 50/50"), "{protocol}: {report}");
    }
    let servers = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    // Two of the pool, and this one.
    assert_eq!(stage.direct(servers), "3");
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

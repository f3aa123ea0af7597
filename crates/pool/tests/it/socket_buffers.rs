//! Sizes of socket buffers: `[pool.tcp]`.

use std::{
    io::Write as _,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::support::PoolFixture;

/// A stalled connection transfers about 40 kB/s, so that a copy of 20 MB would take eight minutes.
const ROWS: usize = 20_000;
const COPY_TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn small_socket_buffers_do_not_stall_copies() {
    for bytes in [4096, 16_384] {
        let more = format!("tcp = {{ buffer-bytes = {bytes} }}");
        let Some(fixture) = PoolFixture::start("socket buffers", &more) else { return };
        let began = Instant::now();
        let rows =
            format!("copy (select repeat('x', 999) from generate_series(1, {ROWS})) to stdout");
        assert_eq!(fixture.psql(&[&rows]).len(), ROWS * 1000 - 1);
        assert!(began.elapsed() < COPY_TIMEOUT, "out, {bytes}: {:?}", began.elapsed());

        let began = Instant::now();
        fixture.query_server("create table rows (x text)");
        let mut psql = fixture.command("psql");
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", "copy rows from stdin"]);
        let mut psql = psql.stdin(Stdio::piped()).spawn().unwrap();
        let line = format!("{}\n", "x".repeat(999));
        let mut input = psql.stdin.take().unwrap();
        (0..ROWS).for_each(|_| input.write_all(line.as_bytes()).unwrap());
        drop(input);
        assert!(psql.wait().unwrap().success());
        assert_eq!(fixture.query_server("select count(*) from rows"), ROWS.to_string());
        assert!(began.elapsed() < COPY_TIMEOUT, "in, {bytes}: {:?}", began.elapsed());
    }
}

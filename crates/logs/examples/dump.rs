#![allow(missing_docs, clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]
use howdah_logs::*;
fn main() {
    let mut args = std::env::args().skip(1).peekable();
    let mut o = Options::default();
    if args.next_if(|a| a == "-s").is_some() {
        o.emit = Emit::Start;
    }
    let paths: Vec<_> = args.map(Into::into).collect();
    let s = read_files(
        &paths,
        o,
        |_| (),
        |e| {
            println!(
                "{} {} {}@{}/{} {:?} {} v={:?} q={:?} dur={:?} st={:?} err={:?}",
                e.time,
                e.session,
                e.user,
                e.database,
                e.application,
                e.source,
                fmt(&e.action),
                e.vxid,
                e.query_id.is_some(),
                e.outcome.duration_us,
                e.outcome.sqlstate,
                e.outcome.error
            );
            Ok::<(), std::convert::Infallible>(())
        },
    );
    match s {
        Ok(s) => println!("{s:#?}"),
        Err(e) => eprintln!("{e}"),
    }
}
fn fmt(a: &howdah_traffic::Action) -> String {
    format!("{a:?}")
}

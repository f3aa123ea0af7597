//! How long a key and a picture take with ten thousand sessions. `bench/top/run` runs it; no test fails on time.
//!
//! What is told is the thread's processor time: all of it is computing, so on an idle machine it is the time that
//! passes, and on a busy one it does not count what others take.

use std::sync::Arc;

use howdah_collect::{Backend, Kind, SqlText, State, Wait};
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};

use super::{Theme, draw};
use crate::{Model, Settings, Standing, model::Message, sampler::tests::snapshot};

const SESSIONS: i32 = 10_000;

fn backend(pid: i32) -> Backend {
    let query = format!("select * from orders where customer = {pid} -- {}", "x".repeat(600));
    Backend {
        pid,
        started_us: 1,
        database: Some("shop".into()),
        user: Some("app".into()),
        application: Some("checkout".into()),
        client: Some("10.0.0.7".into()),
        kind: Some(Kind::Client),
        state: Some(State::Active),
        wait: Some(Wait { class: "IO".into(), event: "DataFileRead".into() }),
        query_started_us: Some(i64::from(pid % 997) * 1_000),
        state_changed_us: Some(i64::from(pid)),
        transaction_started_us: Some(i64::from(pid)),
        query_id: Some(i64::from(pid)),
        query: Some(SqlText::new(query.as_bytes(), None, Some(1024))),
        is_readable: true,
        ..Backend::default()
    }
}

/// The processor time of this thread, in milliseconds.
#[expect(clippy::cast_precision_loss, reason = "spans of less than an hour")]
fn now() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// The longest and the median of what was timed, in milliseconds.
fn told(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    let (last, median) = (times.last().copied(), times.get(times.len() / 2).copied());
    format!("{:.2} | {:.2}", median.unwrap_or(0.0), last.unwrap_or(0.0))
}

#[test]
#[ignore = "bench/top/run prints it"]
#[allow(clippy::print_stdout, reason = "a table for whoever runs it")]
fn ten_thousand_sessions() {
    let mut model = Model::new(["db1".to_owned()], Settings::default());
    let mut terminal = Terminal::new(TestBackend::new(200, 50)).unwrap();
    let theme = Theme::of(crate::screen::Palette::Mono);
    let press = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE);
    let (mut readings, mut keys, mut frames) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..20 {
        let snapshot = snapshot(60_000_000 + round, (1..=SESSIONS).map(backend).collect());
        let begun = now();
        model.update(Message::Standing(0, Standing::Read(Arc::new(snapshot))));
        terminal.draw(|frame| draw(frame, &mut model, &theme)).unwrap();
        readings.push(now() - begun);
        for key in ['j', 'G', 'k', '>', '<', 'r'] {
            let begun = now();
            model.update(Message::Key(press(key)));
            keys.push(now() - begun);
            let begun = now();
            terminal.draw(|frame| draw(frame, &mut model, &theme)).unwrap();
            frames.push(now() - begun);
        }
    }
    println!("| with {SESSIONS} sessions, ms of a processor | median | longest |\n|---|---|---|");
    println!("| a new reading until its picture | {} |", told(readings));
    println!("| a key until the model has changed | {} |", told(keys));
    println!("| a picture after a key | {} |", told(frames));
}

//! Measures how long a key press and a redraw take with ten thousand sessions. Run by
//! `bench/top/run`; no test fails because of timing.
//!
//! The times are the thread's CPU time: on an idle machine this equals elapsed time, and on a busy
//! one it excludes other processes.

use std::sync::Arc;

use howdah_collect::{BackendActivity, BackendState, BackendType, BackendWait, SqlText};
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};

use super::{Theme, draw};
use crate::{Model, ServerHealth, TopSettings, model::ModelMessage, sampler::tests::snapshot};

const SESSIONS: i32 = 10_000;

fn backend(pid: i32) -> BackendActivity {
    let query = format!("select * from orders where customer = {pid} -- {}", "x".repeat(600));
    BackendActivity {
        pid,
        started_us: 1,
        database: Some("shop".into()),
        user: Some("app".into()),
        application: Some("checkout".into()),
        client: Some("10.0.0.7".into()),
        kind: Some(BackendType::Client),
        state: Some(BackendState::Active),
        wait: Some(BackendWait { class: "IO".into(), event: "DataFileRead".into() }),
        query_started_us: Some(i64::from(pid % 997) * 1_000),
        state_changed_us: Some(i64::from(pid)),
        transaction_started_us: Some(i64::from(pid)),
        query_id: Some(i64::from(pid)),
        query: Some(SqlText::new(query.as_bytes(), None, Some(1024))),
        is_readable: true,
        ..BackendActivity::default()
    }
}

/// Returns the CPU time of this thread in milliseconds.
#[expect(clippy::cast_precision_loss, reason = "spans of less than an hour")]
fn thread_cpu_ms() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// Formats the median and the maximum of the times, in milliseconds.
fn median_and_max(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    let (last, median) = (times.last().copied(), times.get(times.len() / 2).copied());
    format!("{:.2} | {:.2}", median.unwrap_or(0.0), last.unwrap_or(0.0))
}

#[test]
#[ignore = "bench/top/run prints it"]
#[allow(clippy::print_stdout, reason = "a table for whoever runs it")]
fn ten_thousand_sessions() {
    let mut model = Model::new(["db1".to_owned()], TopSettings::default());
    let mut terminal = Terminal::new(TestBackend::new(200, 50)).unwrap();
    let theme = Theme::new(crate::screen::Palette::Mono);
    let press = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE);
    let (mut samples, mut keys, mut frames) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..20 {
        let snapshot = snapshot(60_000_000 + round, (1..=SESSIONS).map(backend).collect());
        let started = thread_cpu_ms();
        model.update(ModelMessage::Health(0, ServerHealth::Read(Arc::new(snapshot))));
        terminal.draw(|frame| draw(frame, &mut model, &theme)).unwrap();
        samples.push(thread_cpu_ms() - started);
        for key in ['j', 'G', 'k', '>', '<', 'r'] {
            let started = thread_cpu_ms();
            model.update(ModelMessage::Key(press(key)));
            keys.push(thread_cpu_ms() - started);
            let started = thread_cpu_ms();
            terminal.draw(|frame| draw(frame, &mut model, &theme)).unwrap();
            frames.push(thread_cpu_ms() - started);
        }
    }
    println!("| with {SESSIONS} sessions, ms of a processor | median | longest |\n|---|---|---|");
    println!("| a new reading until its picture | {} |", median_and_max(samples));
    println!("| a key until the model has changed | {} |", median_and_max(keys));
    println!("| a picture after a key | {} |", median_and_max(frames));
}

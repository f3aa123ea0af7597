//! Pictures at three sizes.

use std::sync::Arc;

use howdah_collect::{Backend, Blocker, Kind, Missing, SqlText, State, Wait};
use ratatui::{Terminal, backend::TestBackend};

use super::*;
use crate::{
    Settings, Standing, keys::Command, kill::Plan, model::Message, sampler::tests::snapshot,
};

const NOW_US: i64 = 1_000_000_000;

fn backend(pid: i32, state: State, seconds: i64, query: &str) -> Backend {
    Backend {
        pid,
        started_us: 1,
        database: Some("shop".into()),
        user: Some("app".into()),
        application: Some("checkout".into()),
        client: Some("10.0.0.7".into()),
        kind: Some(Kind::Client),
        state: Some(state),
        query_started_us: Some(NOW_US - seconds * 1_000_000),
        state_changed_us: Some(NOW_US - seconds * 1_000_000),
        transaction_started_us: Some(NOW_US - seconds * 1_000_000),
        query: Some(SqlText::new(query.as_bytes(), None, None)),
        is_readable: true,
        ..Backend::default()
    }
}

fn backends() -> Vec<Backend> {
    let lock = Wait { class: "Lock".into(), event: "transactionid".into() };
    vec![
        backend(
            101,
            State::IdleInTransaction,
            300,
            "update orders set status = 'paid' where id = 7",
        ),
        Backend {
            blockers: vec![Blocker::Process(101)],
            wait: Some(lock.clone()),
            ..backend(102, State::Active, 12, "update orders set status = 'sent' where id = 7")
        },
        Backend {
            blockers: vec![Blocker::Process(102)],
            wait: Some(lock),
            ..backend(103, State::Active, 3, "delete from orders where id = 7")
        },
        backend(104, State::Active, 90, "select 注文 from \u{1b}[2J 日本語の表 where 名前 = 'x'"),
        Backend {
            leader: Some(104),
            kind: Some(Kind::ParallelWorker),
            ..backend(105, State::Active, 90, "select")
        },
        backend(106, State::Idle, 5, "commit"),
    ]
}

fn model() -> Model {
    let mut model = Model::new(["db1".to_owned()], Settings::default());
    let snapshot = Arc::new(snapshot(NOW_US, backends()));
    model.update(Message::Standing(0, Standing::Read(snapshot)));
    model
}

fn picture(model: &mut Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, &Theme::mono())).unwrap();
    terminal.backend().to_string()
}

#[test]
fn sessions_at_three_sizes() {
    for (width, height) in [(80, 24), (120, 40), (40, 10)] {
        insta::assert_snapshot!(
            format!("activity_{width}x{height}"),
            picture(&mut model(), width, height)
        );
    }
}

#[test]
fn who_waits_for_whom_is_a_tree() {
    let mut model = model();
    model.screen = crate::Screen::Blocking;
    insta::assert_snapshot!(picture(&mut model, 100, 14));
}

#[test]
fn a_list_is_shown_before_anything_is_done() {
    let mut model = model();
    let snapshot = model.snapshot().unwrap().clone();
    let policy = crate::kill::Policy::default();
    let action = howdah_collect::Action::Terminate;
    model.overlay = Overlay::Confirm(Plan::of_slow(&snapshot, 30.0, action, policy));
    insta::assert_snapshot!(picture(&mut model, 100, 20));
}

#[test]
fn keys_are_told_as_they_are() {
    let mut model = model();
    model.overlay = Overlay::Help;
    insta::assert_snapshot!(picture(&mut model, 110, 60));
}

#[test]
fn a_role_that_does_not_see_all_is_told_what_helps() {
    let mut model = model();
    let mut snapshot = (**model.snapshot().unwrap()).clone();
    let remedy = "GRANT pg_monitor TO \"watcher\"".to_owned();
    snapshot.missing = Arc::new([Missing { what: "what other roles' sessions do", remedy }]);
    snapshot.activity.backends =
        vec![Backend { pid: 7, application: Some("x".into()), ..Backend::default() }];
    model.update(Message::Standing(0, Standing::Read(Arc::new(snapshot))));
    model.overlay = Overlay::Privileges;
    insta::assert_snapshot!(picture(&mut model, 100, 16));
    model.overlay = Overlay::None;
    let picture = picture(&mut model, 100, 16);
    assert!(picture.contains("n/a") && picture.contains("press g"), "{picture}");
}

#[test]
fn no_size_is_too_small_or_too_large_to_draw() {
    for width in [1, 39, 40, 41, 79, 300] {
        for height in [1, 7, 8, 9, 100] {
            for command in [
                Command::Help,
                Command::Detail,
                Command::Privileges,
                Command::Filter,
                Command::KillSlow,
            ] {
                let mut model = model();
                model.command(command);
                picture(&mut model, width, height);
            }
        }
    }
}

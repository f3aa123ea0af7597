//! Pictures at three sizes.

use std::sync::Arc;

use howdah_collect::{
    Backend, Blocker, Cell, Held, Kind, Missing, PoolerClient, RateView, Reading, SqlText, State,
    Wait, WaitCounts,
};
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};

use super::*;
use crate::{
    Pooled, Settings, Sight, Standing,
    keys::Command,
    kill::Plan,
    model::Message,
    rules::{Guard, Rule},
    sampler::tests::snapshot,
    waits::WaitHistory,
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
        client_port: Some(40_000 + pid),
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
    terminal.draw(|frame| draw(frame, model, &Theme::of(Palette::Mono))).unwrap();
    terminal.backend().to_string()
}

#[test]
fn who_waits_for_whom_is_a_tree() {
    let mut model = model();
    model.screen = Screen::Blocking;
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
    snapshot.missing = Arc::new([Missing { what: "what other roles' sessions do".into(), remedy }]);
    snapshot.activity.backends =
        vec![Backend { pid: 7, database: Some("shop".into()), ..Backend::default() }];
    model.update(Message::Standing(0, Standing::Read(Arc::new(snapshot))));
    model.overlay = Overlay::Privileges;
    insta::assert_snapshot!(picture(&mut model, 100, 16));
    model.overlay = Overlay::None;
    let picture = picture(&mut model, 100, 16);
    assert!(picture.contains("sessions 1/100 (1 not visible)  active n/a"), "{picture}");
    assert!(picture.contains("press g") && !picture.contains("active 0"), "{picture}");
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

/// A client of a pooler, for each of the first sessions and one that waits.
fn pooled() -> Pooled {
    let client = |port: i32, application: &str| PoolerClient {
        user: "app".into(),
        database: "shop".into(),
        state: "active".into(),
        address: "192.168.0.9".into(),
        port,
        application: Some(application.into()),
        ..PoolerClient::default()
    };
    let held = |pid: i32| Some(Held { pid, client_port: 40_000 + pid });
    Pooled::new(vec![
        PoolerClient { holds: held(101), ..client(5101, "cart") },
        PoolerClient { holds: held(102), ..client(5102, "orders \u{1b}[2J") },
        PoolerClient { state: "waiting".into(), waits: Some(7.5), ..client(5103, "report") },
        PoolerClient { state: "idle".into(), ..client(5104, "nobody") },
    ])
}

#[test]
fn the_tree_of_waits_names_the_pooler_s_clients() {
    insta::assert_snapshot!(at_three_sizes(|| {
        let mut model = filled(Screen::Clients);
        model.screen = Screen::Blocking;
        model
    }));
}

#[test]
fn alerts_and_what_cannot_be_told_have_lines_of_their_own() {
    let alerts = |rules: &[&str], standing: &Standing| {
        let rules = rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
        let mut guard = Guard::new("db1", rules);
        guard.look(std::time::Instant::now(), standing);
        guard.holding().cloned().collect::<Vec<_>>()
    };
    insta::assert_snapshot!(at_three_sizes(|| {
        let mut model = Model::new(["db1".to_owned(), "db2".to_owned()], Settings::default());
        let standing = Standing::Read(Arc::new(snapshot(NOW_US, backends())));
        model.update(Message::Standing(0, standing.clone()));
        model.update(Message::Standing(1, standing.clone()));
        let rules = ["query > 5s", "connections > 4%", "idle-in-transaction > 1m", "blocked > 1s"];
        let troubles = vec![
            "cannot write slow statements to pgtop.log: No space left on device".to_owned(),
            "webhook https://hooks.example: 503 Service Unavailable, 7 waiting".to_owned(),
        ];
        model.update(Message::Sight(
            0,
            Sight { alerts: alerts(&rules, &standing), troubles, ..Sight::default() },
        ));
        let elsewhere = Sight { alerts: alerts(&rules[..1], &standing), ..Sight::default() };
        model.update(Message::Sight(1, elsewhere));
        model
    }));
}

#[test]
fn every_page_at_three_sizes() {
    type Open = fn(&mut Model);
    let pages: [(&str, Open); 9] = [
        ("help", |model| drop(model.command(Command::Help))),
        ("detail", |model| drop(model.command(Command::Detail))),
        ("privileges", |model| drop(model.command(Command::Privileges))),
        ("filter", |model| drop(model.command(Command::Filter))),
        ("threshold", |model| drop(model.command(Command::KillSlow))),
        ("long_filter", |model| {
            drop(model.command(Command::Filter));
            for c in
                "user:app state=active query:\"where id = 注文\" time>5s !database:stock".chars()
            {
                model.update(Message::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE)));
            }
        }),
        ("cancel", |model| drop(model.command(Command::Cancel))),
        ("plan", |model| {
            let lines = vec!["Update on orders".to_owned(), "  ->  Index Scan".to_owned()];
            model.overlay = Overlay::Plan(Some(Ok(howdah_collect::Plan { lines, parameters: 1 })));
        }),
        ("no_plan", |model| {
            model.overlay = Overlay::Plan(Some(Err("its statement is not known".to_owned())));
        }),
    ];
    for (name, open) in pages {
        let pictures = at_three_sizes(|| {
            let mut model = model();
            open(&mut model);
            model
        });
        insta::assert_snapshot!(format!("page_{name}"), pictures);
    }
}

#[test]
fn a_server_that_is_away_at_three_sizes() {
    insta::assert_snapshot!(at_three_sizes(|| {
        let mut model = model();
        // Not yet: so it is always as long ago.
        let now = std::time::Instant::now() + std::time::Duration::from_secs(3600);
        let reason = "cannot reach db1:5432: Connection refused (os error 111)".to_owned();
        model.update(Message::Standing(
            0,
            Standing::Away { reason, since: now, retry: now, last: None },
        ));
        model
    }));
}

/// A value of a column, so that each of them differs.
fn value(column: &howdah_collect::Column, row: usize) -> Cell {
    use howdah_collect::{Meaning, Unit};
    let number = i64::try_from((column.name.len() * 7 + row * 13) % 97).unwrap_or(0);
    match (column.meaning, column.unit) {
        (Meaning::Key, _) => format!("{}-{row}", column.name).as_str().into(),
        (_, _) if number % 11 == 0 => Cell::Null,
        (_, _) if number % 13 == 0 => Cell::Unavailable,
        (_, Unit::Text) => format!("{} {row}", column.name).as_str().into(),
        (_, Unit::Bytes) => Cell::Integer(number * 54_321),
        (_, Unit::Percent | Unit::Seconds | Unit::Milliseconds) => {
            Cell::Real(f64::from(u32::try_from(number).unwrap_or(0)) * 1.25)
        }
        (_, Unit::Count) => Cell::Integer(number * 1009),
    }
}

/// A model that looks at a screen which has rows.
fn filled(screen: Screen) -> Model {
    let mut model = model();
    let mut snapshot = (**model.snapshot().unwrap()).clone();
    if let Some(view) = screen.view() {
        let row = |row| view.columns.iter().map(|column| value(column, row)).collect();
        let rows: Vec<Box<[Cell]>> = (0..4).map(row).collect();
        let reading = Reading { view, taken_us: NOW_US, rows: rows.clone().into() };
        snapshot.view = Some(RateView { reading, rows, seconds: 2.0 });
    }
    let mut waits = WaitHistory::default();
    for second in 0..40 {
        waits.add(NOW_US - (40 - second) * 1_000_000, &WaitCounts::of(&snapshot.activity));
    }
    snapshot.waits = Arc::new(waits);
    if screen == Screen::Clients {
        snapshot.pooled = Some(Arc::new(pooled()));
    }
    model.update(Message::Standing(0, Standing::Read(Arc::new(snapshot))));
    model.screen = screen;
    model
}

/// Pictures of a model, made anew for each.
fn at_three_sizes(mut model: impl FnMut() -> Model) -> String {
    [(80, 24), (120, 40), (40, 10)]
        .map(|(width, height)| picture(&mut model(), width, height))
        .join("\n")
}

#[test]
fn every_screen_at_three_sizes() {
    for screen in Screen::all() {
        let pictures = at_three_sizes(|| filled(screen));
        insta::assert_snapshot!(format!("screen_{}", screen.name()), pictures);
    }
}

#[test]
fn a_page_that_does_not_fit_says_so_and_can_be_scrolled_to_its_end() {
    let mut model = model();
    model.overlay = Overlay::Help;
    let first = picture(&mut model, 80, 24);
    assert!(first.contains("more lines: ↓"), "{first}");
    model.scroll = 1000;
    let last = picture(&mut model, 80, 24);
    assert!(last.contains("+ tagged") && last.contains(" 0 more lines"), "{last}");
    assert!(model.scroll < 1000);
}

#[test]
fn a_host_that_is_ours_has_figures() {
    let mut model = model();
    let mut snapshot = (**model.snapshot().unwrap()).clone();
    snapshot.host = Some(crate::host::HostFigures {
        cpu_percent: Some(42.5),
        io_wait_percent: Some(1.0),
        load: Some(3.25),
        memory_bytes: Some(16 << 30),
        available_bytes: Some(3 << 30),
        read_bytes: Some(1_500_000.0),
        write_bytes: None,
    });
    model.update(Message::Standing(0, Standing::Read(Arc::new(snapshot))));
    let picture = picture(&mut model, 120, 12);
    let line = "host cpu 42.5%  io wait 1.0%  load 3.25  memory free 3.0GB of 16.0GB  disk read 1.4MB/s  write -/s";
    assert!(picture.contains(line), "{picture}");
}

#[test]
fn a_recording_says_that_it_is_one() {
    let history =
        crate::history::History::new(["db1".to_owned()], crate::history::Limits::MEMORY).unwrap();
    for second in 0..3 {
        let mut snapshot = snapshot(NOW_US + second * 1_000_000, backends());
        snapshot.seen_us = 1_700_000_000_000_000 + second * 1_000_000;
        history.keep(0, &Standing::Read(Arc::new(snapshot)), None).unwrap();
    }
    let model = Model::new(["db1".to_owned()], Settings::default());
    let mut model = model.replaying("shop.top".to_owned(), Arc::new(history));
    let picture = picture(&mut model, 120, 12);
    assert!(picture.contains("RECORDING shop.top  2023-11-14"), "{picture}");
    assert!(picture.contains("2.0s to its end  stopped 1×"), "{picture}");
    assert!(picture.contains("update orders"), "{picture}");
}

#[test]
fn titles_at_eighty_columns_are_those_that_matter() {
    let activity = picture(&mut filled(Screen::Activity), 80, 24);
    for title in ["Pid", "Time↓", "State", "Waits for", "Query"] {
        assert!(activity.contains(title), "{activity}");
    }
    for screen in Screen::all() {
        let picture = picture(&mut filled(screen), 80, 24);
        // The last line names the order, too.
        let has_arrow = picture.lines().rev().skip(1).any(|line| line.contains('↓'));
        assert!(screen.order().is_none() || has_arrow, "{}: {picture}", screen.name());
    }
}

//! Snapshot tests of all screens at three terminal sizes.

use std::sync::Arc;

use howdah_collect::{
    BackendActivity, BackendState, BackendType, BackendWait, Blocker, MissingPrivilege,
    PooledBackend, PoolerClient, RateView, SqlText, ViewCell, ViewSample, WaitCounts,
};
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};

use super::*;
use crate::{
    AlertView, PooledClients, ServerHealth, TopSettings,
    keys::KeyCommand,
    model::ModelMessage,
    rules::{AlertRule, RuleEvaluator},
    sampler::tests::snapshot,
    signal_plan::SignalPlan,
    waits::WaitHistory,
};

const NOW_US: i64 = 1_000_000_000;

fn backend(pid: i32, state: BackendState, seconds: i64, query: &str) -> BackendActivity {
    BackendActivity {
        pid,
        started_us: 1,
        database: Some("shop".into()),
        user: Some("app".into()),
        application: Some("checkout".into()),
        client: Some("10.0.0.7".into()),
        client_port: Some(40_000 + pid),
        kind: Some(BackendType::Client),
        state: Some(state),
        query_started_us: Some(NOW_US - seconds * 1_000_000),
        state_changed_us: Some(NOW_US - seconds * 1_000_000),
        transaction_started_us: Some(NOW_US - seconds * 1_000_000),
        query: Some(SqlText::new(query.as_bytes(), None, None)),
        is_readable: true,
        ..BackendActivity::default()
    }
}

fn backends() -> Vec<BackendActivity> {
    let lock = BackendWait { class: "Lock".into(), event: "transactionid".into() };
    vec![
        backend(
            101,
            BackendState::IdleInTransaction,
            300,
            "update orders set status = 'paid' where id = 7",
        ),
        BackendActivity {
            blockers: vec![Blocker::Process(101)],
            wait: Some(lock.clone()),
            ..backend(
                102,
                BackendState::Active,
                12,
                "update orders set status = 'sent' where id = 7",
            )
        },
        BackendActivity {
            blockers: vec![Blocker::Process(102)],
            wait: Some(lock),
            ..backend(103, BackendState::Active, 3, "delete from orders where id = 7")
        },
        backend(
            104,
            BackendState::Active,
            90,
            "select 注文 from \u{1b}[2J 日本語の表 where 名前 = 'x'",
        ),
        BackendActivity {
            leader: Some(104),
            kind: Some(BackendType::ParallelWorker),
            ..backend(105, BackendState::Active, 90, "select")
        },
        backend(106, BackendState::Idle, 5, "commit"),
    ]
}

fn model() -> Model {
    let mut model = Model::new(["db1".to_owned()], TopSettings::default());
    let snapshot = Arc::new(snapshot(NOW_US, backends()));
    model.update(ModelMessage::Health(0, ServerHealth::Read(snapshot)));
    model
}

fn picture(model: &mut Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, &Theme::new(Palette::Mono))).unwrap();
    terminal.backend().to_string()
}

#[test]
fn blocking_screen_shows_tree() {
    let mut model = model();
    model.screen = ScreenKind::Blocking;
    insta::assert_snapshot!(picture(&mut model, 100, 14));
}

#[test]
fn confirmation_lists_signals() {
    let mut model = model();
    let snapshot = model.snapshot().unwrap().clone();
    let policy = crate::signal_plan::SignalPolicy::default();
    let action = howdah_collect::SignalAction::Terminate;
    model.overlay = Overlay::Confirm(SignalPlan::for_slow(&snapshot, 30.0, action, policy));
    insta::assert_snapshot!(picture(&mut model, 100, 20));
}

#[test]
fn help_lists_all_keys() {
    let mut model = model();
    model.overlay = Overlay::Help;
    insta::assert_snapshot!(picture(&mut model, 110, 60));
}

#[test]
fn missing_privileges_page_names_the_grant() {
    let mut model = model();
    let mut snapshot = (**model.snapshot().unwrap()).clone();
    let remedy = "GRANT pg_monitor TO \"watcher\"".to_owned();
    snapshot.missing =
        Arc::new([MissingPrivilege { what: "what other roles' sessions do".into(), remedy }]);
    snapshot.activity.backends = vec![BackendActivity {
        pid: 7,
        database: Some("shop".into()),
        ..BackendActivity::default()
    }];
    model.update(ModelMessage::Health(0, ServerHealth::Read(Arc::new(snapshot))));
    model.overlay = Overlay::Privileges;
    insta::assert_snapshot!(picture(&mut model, 100, 16));
    model.overlay = Overlay::None;
    let picture = picture(&mut model, 100, 16);
    assert!(picture.contains("sessions 1/100 (1 not visible)  active n/a"), "{picture}");
    assert!(picture.contains("press g") && !picture.contains("active 0"), "{picture}");
}

#[test]
fn every_terminal_size_can_be_drawn() {
    for width in [1, 39, 40, 41, 79, 300] {
        for height in [1, 7, 8, 9, 100] {
            for command in [
                KeyCommand::Help,
                KeyCommand::Detail,
                KeyCommand::Privileges,
                KeyCommand::Filter,
                KeyCommand::KillSlow,
            ] {
                let mut model = model();
                model.command(command);
                picture(&mut model, width, height);
            }
        }
    }
}

/// Returns clients linked to the first sessions, one that waits, and one that is idle.
fn pooled() -> PooledClients {
    let client = |port: i32, application: &str| PoolerClient {
        user: "app".into(),
        database: "shop".into(),
        state: "active".into(),
        address: "192.168.0.9".into(),
        port,
        application: Some(application.into()),
        ..PoolerClient::default()
    };
    let held = |pid: i32| Some(PooledBackend { pid, client_port: 40_000 + pid });
    PooledClients::new(vec![
        PoolerClient { backend: held(101), ..client(5101, "cart") },
        PoolerClient { backend: held(102), ..client(5102, "orders \u{1b}[2J") },
        PoolerClient { state: "waiting".into(), wait_seconds: Some(7.5), ..client(5103, "report") },
        PoolerClient { state: "idle".into(), ..client(5104, "nobody") },
    ])
}

#[test]
fn blocking_screen_names_pooled_clients() {
    insta::assert_snapshot!(at_three_sizes(|| {
        let mut model = filled(ScreenKind::Clients);
        model.screen = ScreenKind::Blocking;
        model
    }));
}

#[test]
fn alerts_and_notification_problems_have_lines() {
    let alerts = |rules: &[&str], health: &ServerHealth| {
        let rules = rules.iter().map(|rule| AlertRule::parse(rule).unwrap()).collect();
        let mut evaluator = RuleEvaluator::new("db1", rules);
        evaluator.evaluate(std::time::Instant::now(), health);
        evaluator.firing().cloned().collect::<Vec<_>>()
    };
    insta::assert_snapshot!(at_three_sizes(|| {
        let mut model = Model::new(["db1".to_owned(), "db2".to_owned()], TopSettings::default());
        let health = ServerHealth::Read(Arc::new(snapshot(NOW_US, backends())));
        model.update(ModelMessage::Health(0, health.clone()));
        model.update(ModelMessage::Health(1, health.clone()));
        let rules = ["query > 5s", "connections > 4%", "idle-in-transaction > 1m", "blocked > 1s"];
        let problems = vec![
            "cannot write slow statements to pgtop.log: No space left on device".to_owned(),
            "webhook https://hooks.example: 503 Service Unavailable, 7 waiting".to_owned(),
        ];
        model.update(ModelMessage::Alerts(
            0,
            AlertView { alerts: alerts(&rules, &health), problems, ..AlertView::default() },
        ));
        let elsewhere = AlertView { alerts: alerts(&rules[..1], &health), ..AlertView::default() };
        model.update(ModelMessage::Alerts(1, elsewhere));
        model
    }));
}

#[test]
fn every_page_at_three_sizes() {
    type OpenPage = fn(&mut Model);
    let pages: [(&str, OpenPage); 9] = [
        ("help", |model| drop(model.command(KeyCommand::Help))),
        ("detail", |model| drop(model.command(KeyCommand::Detail))),
        ("privileges", |model| drop(model.command(KeyCommand::Privileges))),
        ("filter", |model| drop(model.command(KeyCommand::Filter))),
        ("threshold", |model| drop(model.command(KeyCommand::KillSlow))),
        ("long_filter", |model| {
            drop(model.command(KeyCommand::Filter));
            for c in
                "user:app state=active query:\"where id = 注文\" time>5s !database:stock".chars()
            {
                model
                    .update(ModelMessage::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE)));
            }
        }),
        ("cancel", |model| drop(model.command(KeyCommand::Cancel))),
        ("plan", |model| {
            let lines = vec!["Update on orders".to_owned(), "  ->  Index Scan".to_owned()];
            model.overlay =
                Overlay::Plan(Some(Ok(howdah_collect::GenericPlan { lines, parameters: 1 })));
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
fn unreachable_server_at_three_sizes() {
    insta::assert_snapshot!(at_three_sizes(|| {
        let mut model = model();
        // A time in the future, so that the displayed age is always the same.
        let now = std::time::Instant::now() + std::time::Duration::from_secs(3600);
        let reason = "cannot reach db1:5432: Connection refused (os error 111)".to_owned();
        model.update(ModelMessage::Health(
            0,
            ServerHealth::Unreachable { reason, since: now, retry_at: now, last: None },
        ));
        model
    }));
}

/// Returns a value that depends on the column and the row.
fn value(column: &howdah_collect::ViewColumn, row: usize) -> ViewCell {
    use howdah_collect::{ColumnKind, ColumnUnit};
    let number = i64::try_from((column.name.len() * 7 + row * 13) % 97).unwrap_or(0);
    match (column.kind, column.unit) {
        (ColumnKind::Key, _) => format!("{}-{row}", column.name).as_str().into(),
        (_, _) if number % 11 == 0 => ViewCell::Null,
        (_, _) if number % 13 == 0 => ViewCell::Unavailable,
        (_, ColumnUnit::Text) => format!("{} {row}", column.name).as_str().into(),
        (_, ColumnUnit::Bytes) => ViewCell::Integer(number * 54_321),
        (_, ColumnUnit::Percent | ColumnUnit::Seconds | ColumnUnit::Milliseconds) => {
            ViewCell::Real(f64::from(u32::try_from(number).unwrap_or(0)) * 1.25)
        }
        (_, ColumnUnit::Count) => ViewCell::Integer(number * 1009),
    }
}

/// Creates a model that shows the given screen with rows.
fn filled(screen: ScreenKind) -> Model {
    let mut model = model();
    let mut snapshot = (**model.snapshot().unwrap()).clone();
    if let Some(view) = screen.view() {
        let row = |row| view.columns.iter().map(|column| value(column, row)).collect();
        let rows: Vec<Box<[ViewCell]>> = (0..4).map(row).collect();
        let reading = ViewSample { view, taken_us: NOW_US, rows: rows.clone().into() };
        snapshot.view = Some(RateView { sample: reading, rows, seconds: 2.0 });
    }
    let mut waits = WaitHistory::default();
    for second in 0..40 {
        waits.add(
            NOW_US - (40 - second) * 1_000_000,
            &WaitCounts::from_activity(&snapshot.activity),
        );
    }
    snapshot.waits = Arc::new(waits);
    if screen == ScreenKind::Clients {
        snapshot.pooled_clients = Some(Arc::new(pooled()));
    }
    model.update(ModelMessage::Health(0, ServerHealth::Read(Arc::new(snapshot))));
    model.screen = screen;
    model
}

/// Renders a model at each size; `model` creates a new one each time.
fn at_three_sizes(mut model: impl FnMut() -> Model) -> String {
    [(80, 24), (120, 40), (40, 10)]
        .map(|(width, height)| picture(&mut model(), width, height))
        .join("\n")
}

#[test]
fn every_screen_at_three_sizes() {
    for screen in ScreenKind::all() {
        let pictures = at_three_sizes(|| filled(screen));
        insta::assert_snapshot!(format!("screen_{}", screen.name()), pictures);
    }
}

#[test]
fn long_page_can_be_scrolled_to_its_end() {
    let mut model = model();
    let line = |number: usize| (format!("{number}"), "x".to_owned());
    model.overlay = Overlay::Detail((1..100).map(line).collect());
    let first = picture(&mut model, 80, 24);
    assert!(first.contains("more lines: ↓"), "{first}");
    model.scroll = 1000;
    let last = picture(&mut model, 80, 24);
    assert!(last.contains("99  ") && last.contains(" 0 more lines"), "{last}");
    assert!(model.scroll < 1000);
}

#[test]
fn help_fits_usual_terminals() {
    for keymap in
        [crate::keys::Keymap::Default, crate::keys::Keymap::Pgtop, crate::keys::Keymap::PgActivity]
    {
        for (width, height) in [(80, 24), (120, 40)] {
            let mut model = model();
            model.settings.keymap = keymap;
            model.overlay = Overlay::Help;
            let help = picture(&mut model, width, height);
            assert!(!help.contains("more lines"), "{help}");
            for part in ["marks: ! slow", "Screens", "Sessions", "cancel the statement", "quit"] {
                assert!(help.contains(part), "{part}: {help}");
            }
            // Descriptions are not cut: the right border is on each line.
            let bodies = help.lines().skip(1).take(usize::from(height) - 3);
            assert!(bodies.clone().all(|line| line.trim_matches('"').ends_with('│')), "{help}");
        }
    }
}

#[test]
fn tabs_of_a_statement_are_kept() {
    let mut model = model();
    let lines = vec![("Query".to_owned(), "select\n\ta,\n  b\tc".to_owned())];
    model.overlay = Overlay::Detail(lines);
    let page = picture(&mut model, 80, 24);
    assert!(page.contains("│        a,") && page.contains("│  b     c"), "{page}");
}

#[test]
fn states_of_idle_transactions_differ() {
    let mut model = model();
    let backends = vec![
        backend(1, BackendState::IdleInTransaction, 5, "select 1"),
        backend(2, BackendState::IdleInFailedTransaction, 5, "select 2"),
    ];
    let snapshot = Arc::new(snapshot(NOW_US, backends));
    model.update(ModelMessage::Health(0, ServerHealth::Read(snapshot)));
    let picture = picture(&mut model, 80, 24);
    assert!(picture.contains("idle in tx") && picture.contains("failed tx "), "{picture}");
}

#[test]
fn idle_blocker_is_marked_as_blocking() {
    let activity = picture(&mut model(), 100, 24);
    let row = |pid: &str| {
        let mut lines = activity.lines().filter(|line| !line.contains('▲'));
        let line = lines.find(|line| line.contains(pid) && line.contains("orders"));
        line.unwrap_or_default().trim_start_matches('"').chars().next()
    };
    assert_eq!((row(" 101 "), row(" 102 ")), (Some('B'), Some('L')), "{activity}");
}

#[test]
fn session_page_at_three_sizes() {
    let page = || {
        let mut model = model();
        let mut snapshot = (**model.snapshot().unwrap()).clone();
        let lock = |mode: &str, object: &str, is_granted| howdah_collect::SessionLock {
            mode: mode.into(),
            object: object.into(),
            is_granted,
            waited_us: (!is_granted).then_some(12_000_000),
        };
        // A start time would depend on the time zone.
        snapshot.activity.backends[1].started_us = 0;
        snapshot.session = Some(Arc::new(howdah_collect::SessionDetails {
            pid: 102,
            locks: vec![
                lock("ShareLock", "transaction 4711", false),
                lock("RowExclusiveLock", "orders", true),
            ],
            lock_count: 2,
            progress: None,
            io: Some(vec![howdah_collect::BackendIo {
                target: "relation normal".into(),
                hits: 1234,
                reads: (12, 98_304),
                writes: (0, 0),
                extends: (1, 8192),
            }]),
            wal_bytes: Some(4096),
        }));
        model.update(ModelMessage::Health(0, ServerHealth::Read(Arc::new(snapshot))));
        model.selected = Some(crate::table::RowId::Session(102, 0));
        model.command(KeyCommand::Detail);
        model
    };
    insta::assert_snapshot!(at_three_sizes(page));
}

#[test]
fn column_list_at_three_sizes() {
    insta::assert_snapshot!(at_three_sizes(|| {
        let mut model = model();
        model.command(KeyCommand::Columns);
        model
    }));
}

#[test]
fn hidden_column_is_not_drawn() {
    let mut model = filled(ScreenKind::Activity);
    let choice: crate::ColumnChoice = "activity=pid,application".parse().unwrap();
    model.choices.columns.add(choice);
    let picture = picture(&mut model, 80, 24);
    let titles = picture.lines().find(|line| line.contains("Pid")).unwrap_or_default();
    assert!(titles.contains("Application") && titles.contains("Time↓"), "{picture}");
    assert!(!titles.contains("State") && !titles.contains("Query"), "{picture}");
}

#[test]
fn header_shows_workers_and_sizes() {
    let mut model = model();
    let mut snapshot = (**model.snapshot().unwrap()).clone();
    snapshot.overview.limits = howdah_collect::WorkerLimits {
        autovacuum: Some(3),
        processes: Some(8),
        parallel: Some(8),
        logical: Some(4),
        wal_senders: Some(10),
        slots: Some(10),
    };
    snapshot.overview.slots = Some(9);
    snapshot.overview.database_bytes = Some(3 << 30);
    snapshot.overview.database_growth = Some(2048);
    let kinds = ["logical replication launcher", "logical replication apply worker", "pg_cron"];
    for (pid, kind) in (200..).zip(kinds) {
        let kind = Some(BackendType::Other(kind.into()));
        snapshot
            .activity
            .backends
            .push(BackendActivity { kind, ..backend(pid, BackendState::Idle, 1, "") });
    }
    model.update(ModelMessage::Health(0, ServerHealth::Read(Arc::new(snapshot))));
    let wide = picture(&mut model, 160, 24);
    let line = "size 3.0GB  growth +2.0kB/s  temp files -/s  autovacuum 0/3  parallel 1/8  \
        workers 4/8  logical 1/4  walsenders 0/10  slots 9/10";
    assert!(wide.contains(line), "{wide}");
    // The slots are nearly used up, so they are among the first to be shown.
    let narrow = picture(&mut model, 80, 24);
    assert!(narrow.contains("size 3.0GB") && narrow.contains("slots 9/10"), "{narrow}");
}

#[test]
fn local_host_has_figures() {
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
        ..Default::default()
    });
    model.update(ModelMessage::Health(0, ServerHealth::Read(Arc::new(snapshot))));
    let picture = picture(&mut model, 120, 12);
    let line = "host cpu 42.5%  io wait 1.0%  load 3.25  memory free 3.0GB of 16.0GB  disk read 1.4MB/s  write -/s";
    assert!(picture.contains(line), "{picture}");
}

#[test]
fn replay_is_labelled_as_recording() {
    let history = crate::history::SnapshotHistory::new(
        ["db1".to_owned()],
        crate::history::HistoryLimits::MEMORY,
    )
    .unwrap();
    for second in 0..3 {
        let mut snapshot = snapshot(NOW_US + second * 1_000_000, backends());
        snapshot.sampled_us = 1_700_000_000_000_000 + second * 1_000_000;
        history.push(0, &ServerHealth::Read(Arc::new(snapshot)), None).unwrap();
    }
    let model = Model::new(["db1".to_owned()], TopSettings::default());
    let mut model = model.replaying("shop.top".to_owned(), Arc::new(history));
    let picture = picture(&mut model, 120, 12);
    assert!(picture.contains("RECORDING shop.top  2023-11-14"), "{picture}");
    assert!(picture.contains("2.0s to its end  stopped 1×"), "{picture}");
    assert!(picture.contains("update orders"), "{picture}");
}

#[test]
fn important_titles_are_visible_at_80_columns() {
    let activity = picture(&mut filled(ScreenKind::Activity), 80, 24);
    for title in ["Pid", "Time↓", "State", "Waits for", "Query"] {
        assert!(activity.contains(title), "{activity}");
    }
    for screen in ScreenKind::all() {
        let picture = picture(&mut filled(screen), 80, 24);
        // The last line also names the sort order.
        let has_arrow = picture.lines().rev().skip(1).any(|line| line.contains('↓'));
        assert!(screen.order().is_none() || has_arrow, "{}: {picture}", screen.name());
    }
}

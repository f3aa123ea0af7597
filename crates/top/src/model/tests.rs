//! Tests of the keys, without a terminal and without a server.

use std::time::Instant;

use howdah_collect::{BackendActivity, BackendState, BackendType};

use super::*;
use crate::{history::HistoryLimits, sampler::tests::snapshot};

fn backend(pid: i32, seconds: i64) -> BackendActivity {
    BackendActivity {
        pid,
        started_us: i64::from(pid),
        user: Some("app".into()),
        database: Some("shop".into()),
        kind: Some(BackendType::Client),
        state: Some(BackendState::Active),
        query_started_us: Some(1_000_000_000 - seconds * 1_000_000),
        query: Some(howdah_collect::SqlText::new(format!("select\n {pid}").as_bytes(), None, None)),
        is_readable: true,
        ..BackendActivity::default()
    }
}

fn model_with(settings: TopSettings) -> Model {
    let mut model = Model::new(["db1".to_owned(), "db2".to_owned()], settings);
    sample(&mut model, vec![backend(1, 5), backend(2, 100), backend(3, 50)]);
    model
}

fn model() -> Model {
    model_with(TopSettings::default())
}

fn sample(model: &mut Model, backends: Vec<BackendActivity>) {
    let snapshot = Arc::new(snapshot(1_000_000_000, backends));
    model.update(ModelMessage::Health(0, ServerHealth::Read(snapshot)));
}

fn press(model: &mut Model, keys: &str) -> Vec<ModelEffect> {
    let event = |c| match c {
        '\n' => KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE),
        '\x1b' => KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE),
        c => KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE),
    };
    keys.chars().flat_map(|c| model.update(ModelMessage::Key(event(c)))).collect()
}

fn pids(model: &Model) -> Vec<String> {
    let table = model.table().unwrap();
    table
        .rows
        .iter()
        .map(|row| crate::units::format_cell(&row.cells[0], howdah_collect::ColumnUnit::Count))
        .collect()
}

#[test]
fn slowest_sessions_come_first_unless_reversed() {
    let mut model = model();
    assert_eq!(pids(&model), ["2", "3", "1"]);
    press(&mut model, "r");
    assert_eq!(pids(&model), ["1", "3", "2"]);
}

#[test]
fn selection_follows_its_session() {
    let mut model = model();
    press(&mut model, "j");
    assert_eq!(model.selected, Some(RowId::Session(3, 3)));
    sample(&mut model, vec![backend(1, 5), backend(3, 500), backend(9, 600)]);
    let table = model.table().unwrap();
    assert_eq!(model.selected_at(&table), 1);
    assert_eq!(pids(&model), ["9", "3", "1"]);
}

#[test]
fn signals_need_confirmation() {
    let mut model = model();
    assert_eq!(press(&mut model, "c"), []);
    let Overlay::Confirm(plan) = &model.overlay else { panic!("{:?}", model.overlay) };
    assert_eq!(plan.signals[0].session, "2 app@shop");
    // A typing error neither confirms nor closes the list.
    assert_eq!(press(&mut model, "jx\n"), []);
    let effects = press(&mut model, "y");
    let signal_target = SignalTarget { pid: 2, started_us: 2, query_started_us: Some(900_000_000) };
    let [ModelEffect::Signal(0, SignalAction::Cancel, planned)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(planned.iter().map(|planned| planned.target).collect::<Vec<_>>(), [signal_target]);
    assert_eq!(model.overlay, Overlay::None);
    press(&mut model, "cn");
    assert_eq!(model.overlay, Overlay::None);
}

#[test]
fn only_tagged_sessions_are_signalled() {
    let mut model = model();
    press(&mut model, "  x");
    let Overlay::Confirm(plan) = &model.overlay else { panic!("{:?}", model.overlay) };
    let pids: Vec<_> = plan.signals.iter().map(|planned| planned.target.pid).collect();
    assert_eq!((pids, plan.action), (vec![2, 3], SignalAction::Terminate));
}

#[test]
fn kill_threshold_is_at_least_thirty_seconds() {
    let mut model = model();
    press(&mut model, "K\u{1b}");
    assert_eq!(model.overlay, Overlay::None);
    press(&mut model, "K");
    let Overlay::Prompt(prompt) = &model.overlay else { panic!("{:?}", model.overlay) };
    assert_eq!(prompt.text, "60");
    model.overlay = Overlay::Prompt(Prompt::new(PromptKind::Threshold(SignalAction::Cancel), "5"));
    press(&mut model, "\n");
    assert_eq!(model.notice.as_ref().unwrap().text, "the threshold must be at least 30.0s");
    model.overlay = Overlay::Prompt(Prompt::new(PromptKind::Threshold(SignalAction::Cancel), "40"));
    press(&mut model, "\n");
    let Overlay::Confirm(plan) = &model.overlay else { panic!("{:?}", model.overlay) };
    let pids: Vec<_> = plan.signals.iter().map(|planned| planned.target.pid).collect();
    assert_eq!(pids, [2, 3]);
}

#[test]
fn read_only_mode_ignores_signal_keys() {
    let mut model = model_with(TopSettings { is_read_only: true, ..TopSettings::default() });
    press(&mut model, "cxK");
    assert_eq!(model.overlay, Overlay::None);
}

#[test]
fn typed_filter_applies_and_invalid_one_is_reported() {
    let mut model = model();
    press(&mut model, "/>60s\n");
    assert_eq!(pids(&model), ["2"]);
    press(&mut model, "F/user:\n");
    assert!(model.notice.as_ref().unwrap().is_bad);
    assert_eq!(pids(&model).len(), 3);
}

#[test]
fn changing_screen_requests_its_view() {
    let mut model = model();
    let effects = press(&mut model, "4");
    assert_eq!(model.screen.name(), "databases");
    let ModelEffect::Sample { view, .. } = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(*view, Some("databases"));
    assert!(model.table().is_none(), "it has not been sampled yet");
}

#[test]
fn paused_screen_still_shows_unreachable_server() {
    let mut model = model();
    press(&mut model, "p");
    sample(&mut model, vec![]);
    assert_eq!(pids(&model).len(), 3);
    let now = Instant::now();
    let last = model.snapshot().cloned();
    let unreachable =
        ServerHealth::Unreachable { reason: "gone".to_owned(), since: now, retry_at: now, last };
    model.update(ModelMessage::Health(0, unreachable));
    assert!(matches!(model.servers[0].health, ServerHealth::Unreachable { .. }));
    assert_eq!(pids(&model).len(), 3);
}

#[test]
fn tags_are_cleared_on_server_change() {
    let mut model = model();
    press(&mut model, " n");
    assert_eq!((model.current, model.tagged.len()), (1, 0));
    assert_eq!(press(&mut model, "x"), []);
    assert_eq!(model.notice.as_ref().unwrap().text, "the server has not been sampled yet");
}

#[test]
fn signal_outcomes_are_listed() {
    let mut model = model();
    let signal_target = |pid| SignalTarget { pid, started_us: 0, query_started_us: None };
    let refused = SignalOutcome::Refused {
        message: "must be a superuser".to_owned(),
        sqlstate: "42501".to_owned(),
    };
    model.update(ModelMessage::SignalOutcomes(vec![
        (signal_target(1), Ok(SignalOutcome::Sent)),
        (signal_target(2), Ok(SignalOutcome::Gone)),
        (signal_target(3), Ok(refused)),
    ]));
    let notice = model.notice.unwrap();
    assert_eq!(notice.text, "1 of 3 signalled; 2: already ended; 3: must be a superuser");
    assert!(notice.is_bad);
}

#[test]
fn row_detail_keeps_statement_lines() {
    let mut model = model();
    press(&mut model, "\n");
    let Overlay::Detail(lines) = &model.overlay else { panic!("{:?}", model.overlay) };
    assert_eq!(lines.last().unwrap().1, "select\n 2");
    press(&mut model, "jj");
    assert!(matches!(model.overlay, Overlay::Detail(_)));
    assert_eq!(model.scroll, 2);
    press(&mut model, "q");
    assert_eq!((&model.overlay, model.scroll), (&Overlay::None, 0));
}

/// Returns a model whose history has one sample per second, each with one session more than the
/// previous one.
fn with_samples() -> Model {
    let history =
        SnapshotHistory::new(["db1".to_owned(), "db2".to_owned()], HistoryLimits::MEMORY).unwrap();
    let mut model = model();
    for second in 1..=180 {
        let backends = (1..=second).map(|pid| backend(i32::try_from(pid).unwrap(), 5)).collect();
        let mut read = snapshot(1_000_000_000, backends);
        read.sampled_us = 2_000_000_000 + second * 1_000_000;
        let read = ServerHealth::Read(Arc::new(read));
        history.push(0, &read, None).unwrap();
        model.update(ModelMessage::Health(0, read));
    }
    model.with_history(Arc::new(history))
}

fn sessions(model: &Model) -> usize {
    model.snapshot().unwrap().activity.backends.len()
}

#[test]
fn past_can_be_browsed_and_left() {
    let mut model = with_samples();
    press(&mut model, "[[");
    assert_eq!(sessions(&model), 178);
    press(&mut model, "]");
    assert_eq!(sessions(&model), 179);
    press(&mut model, "{");
    assert_eq!(sessions(&model), 119);
    press(&mut model, "}}");
    assert!(model.past.is_none(), "the present follows the last sample");
    press(&mut model, "t150s\n");
    assert_eq!(sessions(&model), 30);
    press(&mut model, "\u{1b}");
    assert!(model.past.is_none());
    press(&mut model, "t1h\n");
    assert_eq!(sessions(&model), 1);
    press(&mut model, "]");
    assert_eq!(sessions(&model), 2);
    press(&mut model, "tnoon\n");
    assert!(model.notice.as_ref().unwrap().text.contains("is not a time"));
}

#[test]
fn new_samples_do_not_disturb_the_past() {
    let mut model = with_samples();
    press(&mut model, "[");
    sample(&mut model, vec![]);
    assert_eq!(sessions(&model), 179);
    assert_eq!(press(&mut model, "x"), []);
    press(&mut model, "K");
    assert_eq!(model.overlay, Overlay::None);
    assert!(model.notice.as_ref().unwrap().text.starts_with("this is the past"));
    press(&mut model, "\u{1b}");
    assert_eq!(sessions(&model), 0);
    // The other server has no history.
    press(&mut model, "n[");
    assert_eq!(model.notice.as_ref().unwrap().text, "nothing has been sampled yet");
}

#[test]
fn replay_stops_at_end_and_ignores_signal_keys() {
    let history = with_samples().history.unwrap();
    let model = Model::new(["db1".to_owned(), "db2".to_owned()], TopSettings::default());
    let mut model = model.replaying("shop.top".to_owned(), history);
    assert_eq!(sessions(&model), 1);
    assert_eq!(press(&mut model, "cxK"), []);
    assert_eq!(model.overlay, Overlay::None);
    press(&mut model, "++p");
    model.advance_replay(Duration::from_secs(10));
    assert_eq!(sessions(&model), 41);
    model.advance_replay(Duration::from_secs(600));
    assert_eq!(sessions(&model), 180);
    model.advance_replay(Duration::from_secs(1));
    assert!(!model.is_playing());
    press(&mut model, "e");
    assert_eq!(model.notice.as_ref().unwrap().text, "plans are not available in a recording");
}

#[test]
fn replay_opens_on_first_sampled_server() {
    let names = ["a-refused".to_owned(), "b-late".to_owned(), "c".to_owned()];
    let history = Arc::new(SnapshotHistory::new(names.clone(), HistoryLimits::MEMORY).unwrap());
    let unreachable = || ServerHealth::Unreachable {
        reason: "refused".to_owned(),
        since: Instant::now(),
        retry_at: Instant::now(),
        last: None,
    };
    let read = |seen_us| {
        ServerHealth::Read(Arc::new(ServerSnapshot {
            sampled_us: seen_us,
            ..snapshot(0, vec![backend(1, 5)])
        }))
    };
    // Failed attempts have the current time, which is long after these samples.
    history.push(2, &read(1_000_000), None).unwrap();
    history.push(1, &read(5_000_000), None).unwrap();
    for server in [2, 1] {
        history.push(server, &read(90_000_000), None).unwrap();
    }
    history.push(0, &unreachable(), None).unwrap();
    let end_us = history.range(0).unwrap().1;
    assert_eq!(history.overall_range(), Some((1_000_000, end_us)));
    let mut model =
        Model::new(names, TopSettings::default()).replaying("x.top".to_owned(), history);
    assert_eq!((model.current, sessions(&model)), (1, 1));
    assert_eq!(model.past.as_ref().unwrap().at_us, 5_000_000);
    // The unreachable server follows the same clock.
    model.current = 0;
    press(&mut model, "p");
    model.advance_replay(Duration::from_secs(10));
    assert!(model.is_playing());
    assert_eq!(model.past.as_ref().unwrap().at_us, 15_000_000);
}

#[test]
fn plan_is_shown_unless_page_was_closed() {
    let mut model = model();
    let effects = press(&mut model, "e");
    let [ModelEffect::Plan(0, backend)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(backend.pid, 2);
    assert_eq!(model.overlay, Overlay::Plan(None));
    let plan =
        || Ok(howdah_collect::GenericPlan { lines: vec!["Result".to_owned()], parameters: 0 });
    model.update(ModelMessage::Plan(plan()));
    assert_eq!(model.overlay, Overlay::Plan(Some(plan())));
    press(&mut model, "e");
    assert_eq!(model.overlay, Overlay::None);
    model.update(ModelMessage::Plan(plan()));
    assert_eq!(model.overlay, Overlay::None, "the page was closed");
}

#[test]
fn statement_is_copied_verbatim() {
    let mut model = model();
    assert_eq!(press(&mut model, "y"), [ModelEffect::Copy("select\n 2".to_owned())]);
    model.settings.has_clipboard = false;
    assert_eq!(press(&mut model, "y"), []);
    assert!(model.notice.as_ref().unwrap().is_bad);
}

#[test]
fn clicks_sort_and_select_but_never_confirm() {
    use ratatui::crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
    let mut model = model();
    model.geometry = TableGeometry {
        titles_y: 4,
        rows: 10,
        first_row: 0,
        columns: vec![(2, 10, "pid"), (11, 23, "time")],
    };
    let mouse = |model: &mut Model, kind, column, row| {
        let modifiers = KeyModifiers::NONE;
        model.update(ModelMessage::Mouse(MouseEvent { kind, column, row, modifiers }))
    };
    let click = MouseEventKind::Down(MouseButton::Left);
    mouse(&mut model, click, 3, 4);
    assert_eq!((pids(&model).join(" ").as_str(), model.order), ("3 2 1", Some("pid")));
    mouse(&mut model, click, 9, 4);
    assert_eq!(pids(&model), ["1", "2", "3"]);
    mouse(&mut model, click, 10, 4);
    assert_eq!(pids(&model), ["1", "2", "3"], "between two titles");
    mouse(&mut model, click, 30, 6);
    assert_eq!(model.selected, Some(RowId::Session(2, 2)));
    mouse(&mut model, MouseEventKind::ScrollDown, 30, 6);
    assert_eq!(model.selected, Some(RowId::Session(3, 3)));
    mouse(&mut model, click, 30, 9);
    assert_eq!(model.selected, Some(RowId::Session(3, 3)), "no row is there");
    press(&mut model, "c");
    assert_eq!(mouse(&mut model, click, 30, 6), []);
    assert!(matches!(model.overlay, Overlay::Confirm(_)));
}

#[test]
fn table_is_cached_per_sample_and_options() {
    let mut model = model();
    let first = model.table().unwrap();
    press(&mut model, "jjk");
    assert!(Rc::ptr_eq(&first, &model.table().unwrap()));
    press(&mut model, "r");
    assert!(!Rc::ptr_eq(&first, &model.table().unwrap()));
    press(&mut model, "r/user:app\n");
    let filtered = model.table().unwrap();
    sample(&mut model, vec![backend(1, 5)]);
    assert!(!Rc::ptr_eq(&filtered, &model.table().unwrap()));
    assert_eq!(pids(&model), ["1"]);
}

#[test]
fn resorted_cache_equals_fresh_table() {
    let mut model = model();
    for keys in ["r", ">", ">", "r", "<", "/user:app\n", ">", "r"] {
        model.table();
        press(&mut model, keys);
        let options = TableOptions {
            with_idle: model.with_idle,
            filter: model.filter.0.clone(),
            order: model.order,
            is_ascending: model.is_ascending,
            slow_seconds: model.settings.slow.map(|slow| slow.as_secs_f64()),
            time: model.time,
            full_texts: false,
        };
        let new_texts =
            ScreenTable::new(model.screen, model.snapshot().unwrap(), &options).unwrap();
        assert_eq!(*model.table().unwrap(), new_texts, "{keys}");
    }
}

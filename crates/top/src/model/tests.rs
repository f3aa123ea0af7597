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
fn click_closes_the_page_so_that_keys_have_the_selected_row() {
    use ratatui::crossterm::event::{MouseButton, MouseEventKind};

    let mut model = model();
    press(&mut model, "\n");
    let page = model.choices.session.as_ref().map(|page| page.key().0);
    assert_eq!(page, Some(2));
    let click = MouseEvent {
        kind: MouseEventKind::Down(MouseButton::Left),
        column: 3,
        row: 4,
        modifiers: KeyModifiers::NONE,
    };
    let effects = model.update(ModelMessage::Mouse(click));
    assert!(matches!(effects[..], [ModelEffect::Sample { session: None, .. }]), "{effects:?}");
    assert_eq!((&model.overlay, model.choices.session.is_none()), (&Overlay::None, true));
    model.tagged.insert(RowId::Session(1, 1));
    press(&mut model, "c");
    let Overlay::Confirm(plan) = &model.overlay else { panic!("{:?}", model.overlay) };
    assert_eq!((plan.signals.len(), plan.signals[0].target.pid), (1, 1));
}

#[test]
fn enter_opens_the_page_of_a_session() {
    let mut model = model();
    let effects = press(&mut model, "\n");
    let [ModelEffect::Sample { session: Some((0, 2)), .. }] = effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(model.overlay, Overlay::Session);
    press(&mut model, "jj");
    assert_eq!((&model.overlay, model.scroll), (&Overlay::Session, 2));
    // The page is the subject of keys, whichever row is selected or tagged.
    model.tagged.insert(RowId::Session(1, 1));
    press(&mut model, "c");
    let Overlay::Confirm(plan) = &model.overlay else { panic!("{:?}", model.overlay) };
    assert_eq!((plan.signals.len(), plan.signals[0].target.pid), (1, 2));
    let effects = press(&mut model, "y");
    assert!(matches!(&effects[..], [ModelEffect::Signal(0, SignalAction::Cancel, _)]));
    assert_eq!(model.overlay, Overlay::Session, "the page is open again");
    assert_eq!(press(&mut model, "y"), [ModelEffect::Copy("select\n 2".to_owned())]);
    let [ModelEffect::Plan(0, backend, 1)] = &press(&mut model, "e")[..] else { panic!() };
    assert_eq!(backend.pid, 2);
    model.update(ModelMessage::Plan(1, Err("no".to_owned())));
    let plan = &model.choices.session.as_ref().unwrap().plan;
    assert_eq!(*plan, PagePlan::Received(Err("no".to_owned())));
    // The session ends, and its page stays.
    sample(&mut model, vec![backend_of(3)]);
    let page = model.choices.session.clone().unwrap();
    assert!(page.backend(model.snapshot().unwrap()).is_none());
    assert_eq!(page.last.0.pid, 2);
    let effects = press(&mut model, "q");
    assert!(matches!(effects[..], [ModelEffect::Sample { session: None, .. }]), "{effects:?}");
    assert_eq!((&model.overlay, model.scroll), (&Overlay::None, 0));
}

fn backend_of(pid: i32) -> BackendActivity {
    backend(pid, 50)
}

#[test]
fn detail_of_a_row_without_session_scrolls_and_closes() {
    let mut model = model();
    model.screen = ScreenKind::Waits;
    let mut snapshot = (**model.snapshot().unwrap()).clone();
    let mut waits = crate::waits::WaitHistory::default();
    waits.add(1, &howdah_collect::WaitCounts::from_activity(&snapshot.activity));
    snapshot.waits = Arc::new(waits);
    model.update(ModelMessage::Health(0, ServerHealth::Read(Arc::new(snapshot))));
    assert_eq!(press(&mut model, "\n"), []);
    assert!(matches!(model.overlay, Overlay::Detail(_)), "{:?}", model.overlay);
    press(&mut model, "jj");
    assert_eq!(model.scroll, 2);
    press(&mut model, "q");
    assert_eq!((&model.overlay, model.scroll), (&Overlay::None, 0));
}

#[test]
fn empty_list_of_signals_closes_on_any_key() {
    for key in ["y", "q", "2", " ", "t", "\n"] {
        let mut model = model();
        let plan = SignalPlan {
            action: SignalAction::Cancel,
            signals: Vec::new(),
            spared: vec![crate::signal_plan::SparedBackend {
                session: "1 app@shop".to_owned(),
                reason: "it runs no statement: it can only be terminated",
            }],
        };
        model.overlay = Overlay::Confirm(plan);
        assert_eq!(press(&mut model, key), []);
        assert_eq!(model.overlay, Overlay::None, "{key}");
    }
}

#[test]
fn typing_replaces_the_suggested_threshold() {
    let mut model = model();
    press(&mut model, "K90");
    let Overlay::Prompt(prompt) = &model.overlay else { panic!("{:?}", model.overlay) };
    assert_eq!(prompt.text, "90");
    press(&mut model, "\n");
    let Overlay::Confirm(plan) = &model.overlay else { panic!("{:?}", model.overlay) };
    assert_eq!(plan.signals.len(), 1);
}

#[test]
fn chosen_columns_are_used_and_saved() {
    let mut model = model();
    press(&mut model, "v");
    // The first column, the process id, is hidden; the list moves down and hides the third.
    press(&mut model, " jj ");
    assert_eq!(press(&mut model, "\n"), []);
    assert_eq!(model.overlay, Overlay::None);
    let is_shown = |model: &Model, name| model.choices.columns.is_visible(model.screen, name);
    assert!(!is_shown(&model, "pid") && is_shown(&model, "database") && !is_shown(&model, "user"));
    press(&mut model, "v");
    press(&mut model, " s");
    assert!(model.notice.as_ref().unwrap().is_bad, "there is no file");
    assert!(is_shown(&model, "pid"));
    model.settings.columns_file = Some("/x/howdah/top-columns".into());
    let effects = press(&mut model, "vs");
    let [ModelEffect::SaveColumns(path, ScreenKind::Activity, columns)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(path, &PathBuf::from("/x/howdah/top-columns"));
    assert_eq!(*columns, model.choices.columns);
    // At least one column is shown, and Esc changes nothing.
    press(&mut model, "va");
    press(&mut model, "a\n");
    assert!(matches!(model.overlay, Overlay::Columns(_)));
    assert!(model.notice.as_ref().unwrap().text.contains("at least one"));
    press(&mut model, "\u{1b}");
    assert!(is_shown(&model, "pid"));
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
    let [ModelEffect::Plan(0, backend, 1)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(backend.pid, 2);
    assert_eq!(model.overlay, Overlay::Plan(None));
    let plan =
        || Ok(howdah_collect::GenericPlan { lines: vec!["Result".to_owned()], parameters: 0 });
    model.update(ModelMessage::Plan(1, plan()));
    assert_eq!(model.overlay, Overlay::Plan(Some(plan())));
    press(&mut model, "e");
    assert_eq!(model.overlay, Overlay::None);
    model.update(ModelMessage::Plan(1, plan()));
    assert_eq!(model.overlay, Overlay::None, "the page was closed");
    press(&mut model, "e");
    model.update(ModelMessage::Plan(1, plan()));
    assert_eq!(model.overlay, Overlay::Plan(None), "the plan is that of the page before");
    model.update(ModelMessage::Plan(2, plan()));
    assert_eq!(model.overlay, Overlay::Plan(Some(plan())));
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
            time: model.choices.time,
            full_texts: false,
            waits: crate::table::WaitOptions::default(),
        };
        let new_texts =
            ScreenTable::new(model.screen, model.snapshot().unwrap(), &options).unwrap();
        assert_eq!(*model.table().unwrap(), new_texts, "{keys}");
    }
}

/// The rows of the waits screen: value of the dimension, event and share.
fn waits_by_dimension(model: &Model) -> Vec<(String, String, f64)> {
    let table = model.table().unwrap();
    let value = table.columns.len() - 1;
    let text = |row: &TableRow, at: usize| row.cells[at].text().unwrap().to_owned();
    let share = table.column("share").unwrap();
    let rows = table.rows.iter();
    rows.map(|row| (text(row, value), text(row, 1), row.cells[share].number().unwrap())).collect()
}

#[test]
fn waits_are_shown_by_dimension_since_a_mark() {
    let history =
        SnapshotHistory::new(["db1".to_owned(), "db2".to_owned()], HistoryLimits::MEMORY).unwrap();
    let mut model = model();
    press(&mut model, "d");
    assert!(model.notice.as_ref().unwrap().text.contains("waits screen"));
    press(&mut model, "3");
    let push = |model: &mut Model, history: &SnapshotHistory, second: i64, user: &str| {
        let busy = BackendActivity { user: Some(user.into()), ..backend(1, 5) };
        let mut read = snapshot(1_000_000_000, vec![busy]);
        read.sampled_us = 2_000_000_000 + second * 1_000_000;
        let read = ServerHealth::Read(Arc::new(read));
        history.push(0, &read, None).unwrap();
        model.update(ModelMessage::Health(0, read));
    };
    let history = Arc::new(history);
    let mut model = model.with_history(Arc::clone(&history));
    for second in 1..=150 {
        push(&mut model, &history, second, if second <= 100 { "batch" } else { "web" });
    }
    press(&mut model, "dd");
    let all = waits_by_dimension(&model);
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!((all[0].0.as_str(), all[0].1.as_str()), ("batch", "running"));
    assert!((all[0].2 - 200.0 / 3.0).abs() < 1e-6, "{all:?}");
    // Since the mark there is only one role, and then another one.
    press(&mut model, "w");
    push(&mut model, &history, 151, "web");
    assert_eq!(waits_by_dimension(&model), [("web".to_owned(), "running".to_owned(), 100.0)]);
    push(&mut model, &history, 152, "cron");
    assert_eq!(waits_by_dimension(&model).len(), 2);
    // In the past, the period ends at the displayed moment. If that is before the mark, it starts
    // five minutes earlier.
    press(&mut model, "[");
    assert_eq!(waits_by_dimension(&model), [("web".to_owned(), "running".to_owned(), 100.0)]);
    press(&mut model, "{");
    assert_eq!(waits_by_dimension(&model), [("batch".to_owned(), "running".to_owned(), 100.0)]);
    press(&mut model, "dddd");
    assert_eq!(model.choices.dimension, WaitDimension::Event);
}

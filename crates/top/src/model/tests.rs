//! What keys do, without a terminal and without a server.

use std::time::Instant;

use howdah_collect::{Backend, Kind, State};

use super::*;
use crate::{history::Limits, sampler::tests::snapshot};

fn backend(pid: i32, seconds: i64) -> Backend {
    Backend {
        pid,
        started_us: i64::from(pid),
        user: Some("app".into()),
        database: Some("shop".into()),
        kind: Some(Kind::Client),
        state: Some(State::Active),
        query_started_us: Some(1_000_000_000 - seconds * 1_000_000),
        query: Some(howdah_collect::SqlText::new(format!("select\n {pid}").as_bytes(), None, None)),
        is_readable: true,
        ..Backend::default()
    }
}

fn model_of(settings: Settings) -> Model {
    let mut model = Model::new(["db1".to_owned(), "db2".to_owned()], settings);
    show(&mut model, vec![backend(1, 5), backend(2, 100), backend(3, 50)]);
    model
}

fn model() -> Model {
    model_of(Settings::default())
}

fn show(model: &mut Model, backends: Vec<Backend>) {
    let snapshot = Arc::new(snapshot(1_000_000_000, backends));
    model.update(Message::Standing(0, Standing::Read(snapshot)));
}

fn press(model: &mut Model, keys: &str) -> Vec<Effect> {
    let event = |c| match c {
        '\n' => KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE),
        '\x1b' => KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE),
        c => KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE),
    };
    keys.chars().flat_map(|c| model.update(Message::Key(event(c)))).collect()
}

fn pids(model: &Model) -> Vec<String> {
    let table = model.table().unwrap();
    table
        .rows
        .iter()
        .map(|row| crate::units::shown(&row.cells[0], howdah_collect::Unit::Count))
        .collect()
}

#[test]
fn the_slowest_stand_first_and_can_be_turned_round() {
    let mut model = model();
    assert_eq!(pids(&model), ["2", "3", "1"]);
    press(&mut model, "r");
    assert_eq!(pids(&model), ["1", "3", "2"]);
}

#[test]
fn a_selection_stays_with_its_session() {
    let mut model = model();
    press(&mut model, "j");
    assert_eq!(model.selected, Some(RowKey::Session(3, 3)));
    show(&mut model, vec![backend(1, 5), backend(3, 500), backend(9, 600)]);
    let table = model.table().unwrap();
    assert_eq!(model.selected_at(&table), 1);
    assert_eq!(pids(&model), ["9", "3", "1"]);
}

#[test]
fn nothing_is_signalled_without_a_yes_to_a_list() {
    let mut model = model();
    assert_eq!(press(&mut model, "c"), []);
    let Overlay::Confirm(plan) = &model.overlay else { panic!("{:?}", model.overlay) };
    assert_eq!(plan.listed[0].who, "2 app@shop");
    // A slip of a finger neither sends it nor takes it away.
    assert_eq!(press(&mut model, "jx\n"), []);
    let effects = press(&mut model, "y");
    let suspect = SignalTarget { pid: 2, started_us: 2, query_started_us: Some(900_000_000) };
    let [Effect::Signal(0, Action::Cancel, listed)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(listed.iter().map(|listed| listed.suspect).collect::<Vec<_>>(), [suspect]);
    assert_eq!(model.overlay, Overlay::None);
    press(&mut model, "cn");
    assert_eq!(model.overlay, Overlay::None);
}

#[test]
fn tagged_sessions_are_signalled_together_and_no_other() {
    let mut model = model();
    press(&mut model, "  x");
    let Overlay::Confirm(plan) = &model.overlay else { panic!("{:?}", model.overlay) };
    let pids: Vec<_> = plan.listed.iter().map(|listed| listed.suspect.pid).collect();
    assert_eq!((pids, plan.action), (vec![2, 3], Action::Terminate));
}

#[test]
fn all_slower_than_asks_for_at_least_thirty_seconds() {
    let mut model = model();
    press(&mut model, "K\u{1b}");
    assert_eq!(model.overlay, Overlay::None);
    press(&mut model, "K");
    let Overlay::Prompt(prompt) = &model.overlay else { panic!("{:?}", model.overlay) };
    assert_eq!(prompt.text, "60");
    model.overlay = Overlay::Prompt(Prompt::new(Asked::Threshold(Action::Cancel), "5"));
    press(&mut model, "\n");
    assert_eq!(model.notice.as_ref().unwrap().text, "the threshold is at least 30.0s");
    model.overlay = Overlay::Prompt(Prompt::new(Asked::Threshold(Action::Cancel), "40"));
    press(&mut model, "\n");
    let Overlay::Confirm(plan) = &model.overlay else { panic!("{:?}", model.overlay) };
    let pids: Vec<_> = plan.listed.iter().map(|listed| listed.suspect.pid).collect();
    assert_eq!(pids, [2, 3]);
}

#[test]
fn read_only_has_no_key_that_acts() {
    let mut model = model_of(Settings { is_read_only: true, ..Settings::default() });
    press(&mut model, "cxK");
    assert_eq!(model.overlay, Overlay::None);
}

#[test]
fn a_filter_is_typed_and_a_wrong_one_is_said() {
    let mut model = model();
    press(&mut model, "/>60s\n");
    assert_eq!(pids(&model), ["2"]);
    press(&mut model, "F/user:\n");
    assert!(model.notice.as_ref().unwrap().is_bad);
    assert_eq!(pids(&model).len(), 3);
}

#[test]
fn another_screen_wants_its_view() {
    let mut model = model();
    let effects = press(&mut model, "4");
    assert_eq!(model.screen.name(), "databases");
    let Effect::Want { view, .. } = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(*view, Some("databases"));
    assert!(model.table().is_none(), "it was not read yet");
}

#[test]
fn a_paused_picture_stands_still_and_bad_news_still_comes() {
    let mut model = model();
    press(&mut model, "p");
    show(&mut model, vec![]);
    assert_eq!(pids(&model).len(), 3);
    let now = Instant::now();
    let last = model.snapshot().cloned();
    let away = Standing::Away { reason: "gone".to_owned(), since: now, retry: now, last };
    model.update(Message::Standing(0, away));
    assert!(matches!(model.servers[0].standing, Standing::Away { .. }));
    assert_eq!(pids(&model).len(), 3);
}

#[test]
fn tags_do_not_follow_to_another_server() {
    let mut model = model();
    press(&mut model, " n");
    assert_eq!((model.shown, model.tagged.len()), (1, 0));
    assert_eq!(press(&mut model, "x"), []);
    assert_eq!(model.notice.as_ref().unwrap().text, "the server was not read yet");
}

#[test]
fn what_became_of_signals_is_told_for_each() {
    let mut model = model();
    let suspect = |pid| SignalTarget { pid, started_us: 0, query_started_us: None };
    let refused = Signalled::Refused {
        message: "must be a superuser".to_owned(),
        sqlstate: "42501".to_owned(),
    };
    model.update(Message::Signalled(vec![
        (suspect(1), Ok(Signalled::Sent)),
        (suspect(2), Ok(Signalled::Gone)),
        (suspect(3), Ok(refused)),
    ]));
    let notice = model.notice.unwrap();
    assert_eq!(notice.text, "1 of 3 signalled; 2: gone before; 3: must be a superuser");
    assert!(notice.is_bad);
}

#[test]
fn a_row_in_full_has_the_statement_with_its_lines() {
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

/// A model whose past has a reading a second, with one session more in each.
fn with_past() -> Model {
    let history = History::new(["db1".to_owned(), "db2".to_owned()], Limits::MEMORY).unwrap();
    let mut model = model();
    for second in 1..=180 {
        let backends = (1..=second).map(|pid| backend(i32::try_from(pid).unwrap(), 5)).collect();
        let mut read = snapshot(1_000_000_000, backends);
        read.seen_us = 2_000_000_000 + second * 1_000_000;
        let read = Standing::Read(Arc::new(read));
        history.keep(0, &read, None).unwrap();
        model.update(Message::Standing(0, read));
    }
    model.with_history(Arc::new(history))
}

fn sessions(model: &Model) -> usize {
    model.snapshot().unwrap().activity.backends.len()
}

#[test]
fn the_past_is_walked_through_and_left() {
    let mut model = with_past();
    press(&mut model, "[[");
    assert_eq!(sessions(&model), 178);
    press(&mut model, "]");
    assert_eq!(sessions(&model), 179);
    press(&mut model, "{");
    assert_eq!(sessions(&model), 119);
    press(&mut model, "}}");
    assert!(model.past.is_none(), "behind the last reading there is the present");
    press(&mut model, "t150s\n");
    assert_eq!(sessions(&model), 30);
    press(&mut model, "\u{1b}");
    assert!(model.past.is_none());
    press(&mut model, "t1h\n");
    assert_eq!(sessions(&model), 1);
    press(&mut model, "]");
    assert_eq!(sessions(&model), 2);
    press(&mut model, "tnoon\n");
    assert!(model.notice.as_ref().unwrap().text.contains("is no time"));
}

#[test]
fn what_comes_meanwhile_does_not_disturb_the_past() {
    let mut model = with_past();
    press(&mut model, "[");
    show(&mut model, vec![]);
    assert_eq!(sessions(&model), 179);
    assert_eq!(press(&mut model, "x"), []);
    press(&mut model, "K");
    assert_eq!(model.overlay, Overlay::None);
    assert!(model.notice.as_ref().unwrap().text.starts_with("this is the past"));
    press(&mut model, "\u{1b}");
    assert_eq!(sessions(&model), 0);
    // The other server has no past: it was not read.
    press(&mut model, "n[");
    assert_eq!(model.notice.as_ref().unwrap().text, "nothing was read yet");
}

#[test]
fn a_recording_plays_to_its_end_and_has_no_key_that_acts() {
    let history = with_past().history.unwrap();
    let model = Model::new(["db1".to_owned(), "db2".to_owned()], Settings::default());
    let mut model = model.replaying("shop.top".to_owned(), history);
    assert_eq!(sessions(&model), 1);
    assert_eq!(press(&mut model, "cxK"), []);
    assert_eq!(model.overlay, Overlay::None);
    press(&mut model, "++p");
    model.pass(Duration::from_secs(10));
    assert_eq!(sessions(&model), 41);
    model.pass(Duration::from_secs(600));
    assert_eq!(sessions(&model), 180);
    model.pass(Duration::from_secs(1));
    assert!(!model.is_playing());
    press(&mut model, "e");
    assert_eq!(model.notice.as_ref().unwrap().text, "a recording has no server to ask");
}

#[test]
fn replay_opens_on_the_first_server_that_was_read_and_on_the_recordings_clock() {
    let names = ["a-refused".to_owned(), "b-late".to_owned(), "c".to_owned()];
    let history = Arc::new(History::new(names.clone(), Limits::MEMORY).unwrap());
    let away = || Standing::Away {
        reason: "refused".to_owned(),
        since: Instant::now(),
        retry: Instant::now(),
        last: None,
    };
    let read = |seen_us| {
        Standing::Read(Arc::new(Snapshot { seen_us, ..snapshot(0, vec![backend(1, 5)]) }))
    };
    // Attempts that failed carry the present, which is long after these readings.
    history.keep(2, &read(1_000_000), None).unwrap();
    history.keep(1, &read(5_000_000), None).unwrap();
    for server in [2, 1] {
        history.keep(server, &read(90_000_000), None).unwrap();
    }
    history.keep(0, &away(), None).unwrap();
    let end_us = history.range(0).unwrap().1;
    assert_eq!(history.whole_range(), Some((1_000_000, end_us)));
    let mut model = Model::new(names, Settings::default()).replaying("x.top".to_owned(), history);
    assert_eq!((model.shown, sessions(&model)), (1, 1));
    assert_eq!(model.past.as_ref().unwrap().at_us, 5_000_000);
    // The refused server follows the same clock.
    model.shown = 0;
    press(&mut model, "p");
    model.pass(Duration::from_secs(10));
    assert!(model.is_playing());
    assert_eq!(model.past.as_ref().unwrap().at_us, 15_000_000);
}

#[test]
fn a_plan_is_asked_for_and_shown_if_it_is_still_wanted() {
    let mut model = model();
    let effects = press(&mut model, "e");
    let [Effect::Plan(0, backend)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(backend.pid, 2);
    assert_eq!(model.overlay, Overlay::Plan(None));
    let plan = || Ok(howdah_collect::Plan { lines: vec!["Result".to_owned()], parameters: 0 });
    model.update(Message::Planned(plan()));
    assert_eq!(model.overlay, Overlay::Plan(Some(plan())));
    press(&mut model, "e");
    assert_eq!(model.overlay, Overlay::None);
    model.update(Message::Planned(plan()));
    assert_eq!(model.overlay, Overlay::None, "nobody waits for it any more");
}

#[test]
fn the_statement_is_copied_as_it_was_written() {
    let mut model = model();
    assert_eq!(press(&mut model, "y"), [Effect::Copy("select\n 2".to_owned())]);
    model.settings.has_clipboard = false;
    assert_eq!(press(&mut model, "y"), []);
    assert!(model.notice.as_ref().unwrap().is_bad);
}

#[test]
fn clicks_sort_select_and_never_say_yes() {
    use ratatui::crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
    let mut model = model();
    model.geometry = Geometry {
        heads_y: 4,
        rows: 10,
        first_row: 0,
        columns: vec![(2, 10, "pid"), (11, 23, "time")],
    };
    let mouse = |model: &mut Model, kind, column, row| {
        let modifiers = KeyModifiers::NONE;
        model.update(Message::Mouse(MouseEvent { kind, column, row, modifiers }))
    };
    let click = MouseEventKind::Down(MouseButton::Left);
    mouse(&mut model, click, 3, 4);
    assert_eq!((pids(&model).join(" ").as_str(), model.order), ("3 2 1", Some("pid")));
    mouse(&mut model, click, 9, 4);
    assert_eq!(pids(&model), ["1", "2", "3"]);
    mouse(&mut model, click, 10, 4);
    assert_eq!(pids(&model), ["1", "2", "3"], "between two titles");
    mouse(&mut model, click, 30, 6);
    assert_eq!(model.selected, Some(RowKey::Session(2, 2)));
    mouse(&mut model, MouseEventKind::ScrollDown, 30, 6);
    assert_eq!(model.selected, Some(RowKey::Session(3, 3)));
    mouse(&mut model, click, 30, 9);
    assert_eq!(model.selected, Some(RowKey::Session(3, 3)), "no row is there");
    press(&mut model, "c");
    assert_eq!(mouse(&mut model, click, 30, 6), []);
    assert!(matches!(model.overlay, Overlay::Confirm(_)));
}

#[test]
fn a_table_is_made_once_for_each_reading_and_each_way_to_look_at_it() {
    let mut model = model();
    let first = model.table().unwrap();
    press(&mut model, "jjk");
    assert!(Rc::ptr_eq(&first, &model.table().unwrap()));
    press(&mut model, "r");
    assert!(!Rc::ptr_eq(&first, &model.table().unwrap()));
    press(&mut model, "r/user:app\n");
    let filtered = model.table().unwrap();
    show(&mut model, vec![backend(1, 5)]);
    assert!(!Rc::ptr_eq(&filtered, &model.table().unwrap()));
    assert_eq!(pids(&model), ["1"]);
}

#[test]
fn rows_that_are_sorted_anew_are_those_of_a_new_table() {
    let mut model = model();
    for keys in ["r", ">", ">", "r", "<", "/user:app\n", ">", "r"] {
        model.table();
        press(&mut model, keys);
        let choice = Choice {
            with_idle: model.with_idle,
            filter: model.filter.0.clone(),
            order: model.order,
            is_ascending: model.is_ascending,
            slow_seconds: model.settings.slow.map(|slow| slow.as_secs_f64()),
        };
        let fresh = Table::of(model.screen, model.snapshot().unwrap(), &choice).unwrap();
        assert_eq!(*model.table().unwrap(), fresh, "{keys}");
    }
}

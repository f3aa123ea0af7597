//! What keys do, without a terminal and without a server.

use std::time::Instant;

use howdah_collect::{Backend, Kind, State};

use super::*;
use crate::sampler::tests::snapshot;

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
    let suspect = Suspect { pid: 2, started_us: 2, query_started_us: Some(900_000_000) };
    assert_eq!(effects, [Effect::Signal(0, Action::Cancel, vec![suspect])]);
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
    let suspect = |pid| Suspect { pid, started_us: 0, query_started_us: None };
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
    press(&mut model, "j");
    assert_eq!(model.overlay, Overlay::None);
}

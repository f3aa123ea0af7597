use howdah_connect::{ConnParams, Environment};
use howdah_stats::Registry;

use super::*;

fn board(floors: WarmFloors, role: BoardRole) -> (Arc<ReadinessBoard>, Registry) {
    let params = ConnParams::from_conninfo("host=db1 dbname=shop user=warm");
    let target = ConnectTarget::resolve(&params, &Environment::empty()).unwrap();
    let (board, registry) = (Arc::new(ReadinessBoard::new(floors)), Registry::new());
    let metrics = ReadinessMetrics::new(&registry, "db1:5432");
    board.add("db1:5432", &target, DumpSource::Best, role, metrics);
    (board, registry)
}

fn report(shop: u64, stats: u64) -> HeatReport {
    let share = |resident_heat| HeatShare {
        heat: 100,
        resident_heat,
        pages: 100,
        resident_pages: resident_heat,
        unknown_pages: 0,
    };
    HeatReport {
        total: HeatShare {
            heat: 200,
            resident_heat: shop + stats,
            pages: 200,
            resident_pages: shop + stats,
            unknown_pages: 0,
        },
        databases: [("shop".to_owned(), share(shop)), ("stats".to_owned(), share(stats))].into(),
        source: ImageSource::Memory,
    }
}

fn state(board: &ReadinessBoard, database: Option<&str>) -> WarmState {
    board.query(None, database).unwrap()[0].state
}

#[test]
fn state_depends_on_floors_of_all_databases() {
    let floors = WarmFloors { all: 0.8, databases: [("shop".to_owned(), 0.95)].into() };
    let (board, registry) = board(floors, BoardRole::Standby);
    assert_eq!(state(&board, None), WarmState::Unreachable);
    board.set_up("db1:5432", true);
    assert_eq!(state(&board, None), WarmState::Cold, "not measured");

    board.record("db1:5432", report(95, 70));
    assert_eq!(state(&board, None), WarmState::Warm, "the floor of shop is reached");
    assert_eq!(state(&board, Some("shop")), WarmState::Warm);
    assert_eq!(state(&board, Some("stats")), WarmState::Cold);
    board.record("db1:5432", report(90, 90));
    let found = &board.query(None, None).unwrap()[0];
    assert_eq!(found.state, WarmState::Cold, "shop is below its own floor");
    assert!(found.reason.as_ref().unwrap().contains("shop"), "{:?}", found.reason);
    assert_eq!(state(&board, Some("stats")), WarmState::Warm);

    board.set_loading("db1:5432", true);
    assert_eq!(state(&board, None), WarmState::Loading);
    board.record("db1:5432", report(99, 99));
    assert_eq!(state(&board, None), WarmState::Warm, "a warm standby stays warm during a load");
    let text = registry.prometheus();
    assert!(text.contains("howdah_warm_server_warm{server=\"db1:5432\"} 1\n"), "{text}");
    let line = "howdah_warm_database_heat_ratio{server=\"db1:5432\",database=\"shop\"} 0.99\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn watched_server_is_loading_until_load_ends() {
    let (board, _) = board(WarmFloors::default(), BoardRole::Watched);
    board.set_up("db1:5432", true);
    board.set_loading("db1:5432", true);
    board.record("db1:5432", report(100, 100));
    assert_eq!(state(&board, None), WarmState::Loading);
    board.set_loading("db1:5432", false);
    assert_eq!(state(&board, None), WarmState::Warm);
    // A measurement before a restart says nothing about the cache after it.
    board.set_up("db1:5432", false);
    board.set_up("db1:5432", true);
    assert_eq!(state(&board, None), WarmState::Cold);
}

#[test]
fn unknown_names_are_rejected() {
    let (board, _) = board(WarmFloors::default(), BoardRole::Watched);
    let error = board.query(Some("db2:5432"), None).unwrap_err();
    assert_eq!(error.to_string(), "no server is called \"db2:5432\"; known: db1:5432");
    assert!(board.query(Some("db1:5432"), Some("shpo")).is_ok(), "nothing is measured yet");
    board.record("db1:5432", report(1, 1));
    let error = board.query(None, Some("shpo")).unwrap_err();
    assert!(matches!(error, ReadinessQueryError::NoDatabase { .. }));
}

#[test]
fn newly_cold_standby_is_reported_once() {
    let (board, _) = board(WarmFloors::default(), BoardRole::Standby);
    board.set_up("db1:5432", true);
    assert!(!board.take_newly_cold(), "nothing was measured");
    board.record("db1:5432", report(100, 100));
    board.record("db1:5432", report(10, 10));
    assert!(board.take_newly_cold());
    board.record("db1:5432", report(9, 9));
    assert!(!board.take_newly_cold());
}

use super::*;

const HOME: PoolId = PoolId(3);

fn ear(number: u32) -> ListeningClient {
    (WorkerId(0), ClientId::new(number, 0))
}

fn channel(name: &str) -> Channel {
    name.as_bytes().into()
}

fn channels(names: &[&str]) -> Vec<Channel> {
    names.iter().map(|name| channel(name)).collect()
}

fn query(board: &mut ChannelTable) -> String {
    board.next_query().map(|sql| String::from_utf8(sql).unwrap()).unwrap_or_default()
}

#[test]
fn a_client_is_answered_when_the_server_listens_to_all_of_it() {
    let mut board = ChannelTable::default();
    assert_eq!(board.listen(ear(1), HOME, channels(&["a", "x\"y"]), false), None);
    assert_eq!(query(&mut board), "LISTEN \"a\";LISTEN \"x\"\"y\";");
    assert_eq!(board.listen(ear(2), HOME, channels(&["a"]), false), None, "not answered yet");
    let outcomes = board.answered(Ok(()));
    assert!(outcomes.contains(&Outcome::Answer(ear(1), Ok(()))));
    assert!(outcomes.contains(&Outcome::Answer(ear(2), Ok(()))) && outcomes.len() == 2);
    assert_eq!(query(&mut board), "");
    let third = board.listen(ear(3), HOME, channels(&["a"]), false);
    assert_eq!(third, Some(Outcome::Answer(ear(3), Ok(()))), "it is listened to already");
    assert_eq!(board.ears(b"a")[0].1.len(), 3);
    assert!(board.ears(b"b").is_empty());
}

#[test]
fn the_server_is_told_when_nobody_listens_any_more() {
    let mut board = ChannelTable::default();
    for number in 1..3 {
        board.listen(ear(number), HOME, channels(&["a", "b"]), false);
    }
    query(&mut board);
    board.answered(Ok(()));
    board.unlisten(ear(1), None);
    assert_eq!(query(&mut board), "");
    board.unlisten(ear(2), Some(channels(&["a"])));
    // Somebody else comes before the server was told.
    assert!(board.listen(ear(4), HOME, channels(&["a"]), false).is_some());
    assert_eq!(query(&mut board), "");
    board.unlisten(ear(4), None);
    assert_eq!(query(&mut board), "UNLISTEN \"a\";");
    board.unlisten(ear(2), None);
    assert!(board.is_empty());
    assert_eq!(query(&mut board), "UNLISTEN \"b\";");
}

#[test]
fn one_name_that_is_refused_does_not_harm_others() {
    let mut board = ChannelTable::default();
    board.listen(ear(1), HOME, channels(&["a"]), false);
    board.listen(ear(2), HOME, channels(&["\u{fffd}"]), false);
    query(&mut board);
    assert_eq!(board.answered(Err("no".to_owned())), [], "one of two: nobody knows which");
    assert_eq!(query(&mut board), "LISTEN \"a\";");
    assert_eq!(board.answered(Ok(())), [Outcome::Answer(ear(1), Ok(()))]);
    assert_eq!(query(&mut board), "LISTEN \"\u{fffd}\";");
    let refused = Outcome::Answer(ear(2), Err("no".to_owned()));
    assert_eq!(board.answered(Err("no".to_owned())), [refused]);
    assert!(!board.take_stuck());
    // It asks again, without having been forgotten.
    board.listen(ear(2), HOME, channels(&["\u{fffd}"]), false);
    assert_eq!(query(&mut board), "LISTEN \"\u{fffd}\";");
}

#[test]
fn after_a_loss_everything_is_asked_for_anew_and_all_are_told() {
    let mut board = ChannelTable::default();
    board.listen(ear(1), HOME, channels(&["a", "b"]), false);
    query(&mut board);
    board.answered(Ok(()));
    board.lost();
    board.listen(ear(2), HOME, channels(&["a"]), false);
    assert_eq!(board.refuse_waiting("down"), [Outcome::Answer(ear(2), Err("down".to_owned()))]);
    board.unlisten(ear(2), None);
    let sql = query(&mut board);
    assert!(sql.contains("LISTEN \"a\";") && sql.contains("LISTEN \"b\";"), "{sql}");
    assert_eq!(board.answered(Ok(())), [Outcome::Missed(ear(1))]);
    board.lost();
    board.unlisten(ear(1), Some(channels(&["a"])));
    assert_eq!(query(&mut board), "LISTEN \"b\";");
    assert_eq!(board.answered(Err("a standby".to_owned())), []);
    assert!(board.take_stuck(), "who relies on it needs another server");
}

#[test]
fn a_client_of_another_process_is_told_when_it_is_heard_again() {
    let mut board = ChannelTable::default();
    assert_eq!(board.listen(ear(1), HOME, channels(&["a"]), true), None);
    query(&mut board);
    assert_eq!(board.answered(Ok(())), [Outcome::Missed(ear(1))]);
}

use super::*;

const HOME: PoolId = PoolId(3);

fn client(number: u32) -> ListeningClient {
    (WorkerId(0), ClientId::new(number, 0))
}

fn channel(name: &str) -> Channel {
    name.as_bytes().into()
}

fn channels(names: &[&str]) -> Vec<Channel> {
    names.iter().map(|name| channel(name)).collect()
}

fn query(table: &mut ChannelTable) -> String {
    table.next_query().map(|sql| String::from_utf8(sql).unwrap()).unwrap_or_default()
}

#[test]
fn listen_is_answered_once_all_channels_are_confirmed() {
    let mut table = ChannelTable::default();
    assert_eq!(table.listen(client(1), HOME, channels(&["a", "x\"y"]), false), None);
    assert_eq!(query(&mut table), "LISTEN \"a\";LISTEN \"x\"\"y\";");
    assert_eq!(table.listen(client(2), HOME, channels(&["a"]), false), None, "no reply yet");
    let outcomes = table.handle_reply(Ok(()));
    assert!(outcomes.contains(&ListenOutcome::Reply(client(1), Ok(()))));
    assert!(outcomes.contains(&ListenOutcome::Reply(client(2), Ok(()))) && outcomes.len() == 2);
    assert_eq!(query(&mut table), "");
    let third = table.listen(client(3), HOME, channels(&["a"]), false);
    assert_eq!(
        third,
        Some(ListenOutcome::Reply(client(3), Ok(()))),
        "the channel is already confirmed"
    );
    assert_eq!(table.listening_clients(b"a")[0].1.len(), 3);
    assert!(table.listening_clients(b"b").is_empty());
}

#[test]
fn unlisten_is_sent_after_last_client_leaves_channel() {
    let mut table = ChannelTable::default();
    for number in 1..3 {
        table.listen(client(number), HOME, channels(&["a", "b"]), false);
    }
    query(&mut table);
    table.handle_reply(Ok(()));
    table.unlisten(client(1), None);
    assert_eq!(query(&mut table), "");
    table.unlisten(client(2), Some(channels(&["a"])));
    // Another client listens before UNLISTEN is sent.
    assert!(table.listen(client(4), HOME, channels(&["a"]), false).is_some());
    assert_eq!(query(&mut table), "");
    table.unlisten(client(4), None);
    assert_eq!(query(&mut table), "UNLISTEN \"a\";");
    table.unlisten(client(2), None);
    assert!(table.is_empty());
    assert_eq!(query(&mut table), "UNLISTEN \"b\";");
}

#[test]
fn refused_channel_name_does_not_affect_other_channels() {
    let mut table = ChannelTable::default();
    table.listen(client(1), HOME, channels(&["a"]), false);
    table.listen(client(2), HOME, channels(&["\u{fffd}"]), false);
    query(&mut table);
    assert_eq!(table.handle_reply(Err("no".to_owned())), [], "one of two, unknown which");
    assert_eq!(query(&mut table), "LISTEN \"a\";");
    assert_eq!(table.handle_reply(Ok(())), [ListenOutcome::Reply(client(1), Ok(()))]);
    assert_eq!(query(&mut table), "LISTEN \"\u{fffd}\";");
    let refused = ListenOutcome::Reply(client(2), Err("no".to_owned()));
    assert_eq!(table.handle_reply(Err("no".to_owned())), [refused]);
    assert!(!table.take_must_reconnect());
    // The same client tries again.
    table.listen(client(2), HOME, channels(&["\u{fffd}"]), false);
    assert_eq!(query(&mut table), "LISTEN \"\u{fffd}\";");
}

#[test]
fn lost_connection_listens_again_and_reports_missed_notifications() {
    let mut table = ChannelTable::default();
    table.listen(client(1), HOME, channels(&["a", "b"]), false);
    query(&mut table);
    table.handle_reply(Ok(()));
    table.connection_lost();
    table.listen(client(2), HOME, channels(&["a"]), false);
    assert_eq!(
        table.refuse_waiting("down"),
        [ListenOutcome::Reply(client(2), Err("down".to_owned()))]
    );
    table.unlisten(client(2), None);
    let sql = query(&mut table);
    assert!(sql.contains("LISTEN \"a\";") && sql.contains("LISTEN \"b\";"), "{sql}");
    assert_eq!(table.handle_reply(Ok(())), [ListenOutcome::Missed(client(1))]);
    table.connection_lost();
    table.unlisten(client(1), Some(channels(&["a"])));
    assert_eq!(query(&mut table), "LISTEN \"b\";");
    assert_eq!(table.handle_reply(Err("a standby".to_owned())), []);
    assert!(table.take_must_reconnect(), "a client in use of the channel needs another server");
}

#[test]
fn resumed_client_is_told_of_missed_notifications() {
    let mut table = ChannelTable::default();
    assert_eq!(table.listen(client(1), HOME, channels(&["a"]), true), None);
    query(&mut table);
    assert_eq!(table.handle_reply(Ok(())), [ListenOutcome::Missed(client(1))]);
}

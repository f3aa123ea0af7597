//! The choice among several hosts.

use howdah_connect::{ConnectFailure, Endpoint};
use howdah_lab::{Cluster, skip_without_postgres};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

use crate::{cluster::shared, connect, failures, fake_servers::serve, only_failure};

/// A port that refuses connections as long as the value lives: it is bound, but has no listener.
struct Refusing {
    _socket: rustix::fd::OwnedFd,
    port: u16,
}

impl Refusing {
    fn new() -> Self {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        bind(&socket, &any).unwrap();
        let bound = std::net::SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
        Self { _socket: socket, port: bound.port() }
    }
}

#[test]
fn refused_connection_names_address() {
    let refusing = Refusing::new();
    let conninfo = format!("host=127.0.0.1 port={} password=hunter2", refusing.port);
    let error = connect(&conninfo).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("127.0.0.1:{}: Connection refused", refusing.port)), "{text}");
    assert!(!format!("{error:?}").contains("hunter2"));
    assert!(matches!(only_failure(Err(error)), ConnectFailure::Unreachable(_)));
    let cause = only_failure(connect("host=/nowhere/at/all"));
    assert!(matches!(cause, ConnectFailure::Unreachable(_)), "{cause}");
}

#[test]
fn unknown_host_name_is_an_error() {
    // RFC 6761 reserves this name.
    let cause = only_failure(connect("host=howdah.invalid"));
    assert!(matches!(cause, ConnectFailure::Lookup { .. }), "{cause}");
}

#[test]
fn unreachable_hosts_are_skipped() {
    let Some(shared) = shared() else { return };
    let (refusing, closing) = (Refusing::new(), serve(drop));
    let (refused, good) = (refusing.port, shared.port());
    let conninfo = format!(
        "host=127.0.0.1,127.0.0.1,127.0.0.1,/nowhere port={refused},{closing},{good},1 \
         dbname=postgres user=postgres"
    );
    let client = connect(&conninfo).unwrap();
    let expected = Endpoint::Tcp { host: "127.0.0.1".to_owned(), hostaddr: None, port: good };
    assert_eq!(client.endpoint(), &expected);
    let client = connect(&format!("{conninfo} load_balance_hosts=random")).unwrap();
    assert_eq!(client.endpoint(), &expected);
}

#[test]
fn refused_login_stops_search() {
    let Some(shared) = shared() else { return };
    let good = shared.port();
    let conninfo =
        format!("host=127.0.0.1,127.0.0.1 port={good} dbname=postgres user=scram password=hunter2");
    assert!(matches!(only_failure(connect(&conninfo)), ConnectFailure::Sql(_)));
    let none = connect(&shared.by_tcp("postgres", "dbname=nope")).unwrap_err();
    assert_eq!(none.sqlstate(), Some("3D000"), "{none}");
}

#[test]
fn session_attributes_distinguish_standby_from_primary() {
    let Some(shared) = shared() else { return };
    let built = Cluster::builder().name("standby").standby_of(shared.cluster()).start();
    let Some(standby) =
        skip_without_postgres("session_attributes_distinguish_standby_from_primary", built)
    else {
        return;
    };
    let (primary, replica) = (shared.port(), standby.port());
    for (wanted, first, second, expected) in [
        ("any", replica, primary, replica),
        ("primary", replica, primary, primary),
        ("read-write", replica, primary, primary),
        ("read-only", primary, replica, replica),
        ("standby", primary, replica, replica),
        ("prefer-standby", primary, replica, replica),
    ] {
        let conninfo = format!(
            "host=127.0.0.1,127.0.0.1 port={first},{second} dbname=postgres user=postgres \
             target_session_attrs={wanted}"
        );
        assert_eq!(connect(&conninfo).unwrap().endpoint().port(), expected, "{wanted}");
    }
}

#[test]
fn session_kind_must_match() {
    let Some(shared) = shared() else { return };
    let table = [
        ("postgres", "any", true),
        ("postgres", "read-write", true),
        ("postgres", "read-only", false),
        ("postgres", "primary", true),
        ("postgres", "standby", false),
        ("postgres", "prefer-standby", true),
        ("read_only", "read-only", true),
        ("read_only", "read-write", false),
        ("read_only", "primary", true),
    ];
    for (user, wanted, found) in table {
        let result = connect(&shared.by_tcp(user, &format!("target_session_attrs={wanted}")));
        match result {
            Ok(_) => assert!(found, "{user} {wanted}"),
            Err(error) => {
                assert!(!found, "{user} {wanted}: {error}");
                let causes = failures(Err(error));
                assert!(matches!(causes[..], [ConnectFailure::WrongSession { .. }]), "{causes:?}");
            }
        }
    }
}

//! Without a broker; `tests/receivers` has the tests with one.

use super::*;
use crate::{
    backends::{LOST_VALUES, SPOOL_BATCHES, chain, testing::snapshot},
    settings::SaslMechanism,
};

fn settings() -> KafkaSettings {
    KafkaSettings {
        // A port that nothing can listen on.
        brokers: vec!["127.0.0.1:1".to_owned()],
        topic: "metrics".to_owned(),
        format: KafkaFormat::Json,
        tls: false,
        ca_file: None,
        user: None,
        password_file: None,
        mechanism: SaslMechanism::default(),
        batch_bytes: 1024,
        spool_bytes: 1 << 20,
    }
}

#[test]
fn unreachable_broker_delays_values_and_is_named() {
    let mut kafka = KafkaBackend::new(&settings()).unwrap();
    kafka.flush(&snapshot()).unwrap();
    assert!(kafka.status.get(SPOOL_BATCHES) > Some(1.0), "{:?}", kafka.status);
    assert_eq!(kafka.status.get(LOST_VALUES), Some(0.0));
    let error = chain(&kafka.finish(Duration::from_secs(5)).unwrap_err());
    assert!(error.starts_with("metrics at 127.0.0.1:1: "), "{error}");
    assert!(error.contains("values dropped: "), "{error}");
    assert!(kafka.status.get(LOST_VALUES) > Some(10.0));
}

#[test]
fn without_spool_error_has_reason() {
    let mut kafka = KafkaBackend::new(&KafkaSettings { spool_bytes: 0, ..settings() }).unwrap();
    let error = chain(&kafka.flush(&snapshot()).unwrap_err());
    assert!(error.contains("values dropped: ") && error.contains("refused"), "{error}");
}

#[test]
fn unusable_password_is_reported_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("password");
    let with_password = |text: &str| {
        fs::write(&path, text).unwrap();
        let (user, password_file) = (Some("joe".to_owned()), Some(path.clone()));
        KafkaBackend::new(&KafkaSettings { user, password_file, ..settings() })
    };
    let error = chain(&with_password("\n").err().unwrap());
    assert!(error.ends_with("password: the file is empty"), "{error}");
    let kafka = with_password("hunter2\n").unwrap();
    assert!(!format!("{kafka:?}").contains("hunter2"));
    let tls = KafkaSettings { tls: true, ca_file: Some(path), ..settings() };
    let error = chain(&KafkaBackend::new(&tls).err().unwrap());
    assert!(error.contains("password"), "{error}");
}

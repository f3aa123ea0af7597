use proptest::prelude::*;

use super::*;
use crate::testing;

#[test]
fn packets_match_manual_layout() {
    let mut buf = Vec::new();
    let parameters: [(&[u8], &[u8]); 2] = [(b"user", b"al"), (b"database", b"db")];
    startup(&mut buf, ProtocolVersion::V3_0, parameters).unwrap();
    assert_eq!(buf, b"\0\0\0\x1d\0\x03\0\0user\0al\0database\0db\0\0");

    assert_eq!(SSL_REQUEST_PACKET, *b"\0\0\0\x08\x04\xd2\x16\x2f", "80877103");
    assert_eq!(GSS_ENC_REQUEST_PACKET, *b"\0\0\0\x08\x04\xd2\x16\x30", "80877104");

    buf.clear();
    cancel_request(&mut buf, &CancelKey::new(258, b"key!").unwrap());
    assert_eq!(buf, b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\x01\x02key!", "80877102");
}

#[test]
fn packets_are_distinguished_by_code() {
    let only = |bytes| match Packet::split(bytes, PACKET_BYTES_MAX) {
        Ok(Some((packet, b""))) => packet,
        other => panic!("{other:?}"),
    };
    assert!(matches!(only(&SSL_REQUEST_PACKET), Packet::SslRequest));
    assert!(matches!(only(&GSS_ENC_REQUEST_PACKET), Packet::GssEncRequest));
    let Packet::CancelRequest(key) = only(b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\x01\x02key!") else {
        panic!()
    };
    assert_eq!(key, CancelKey::new(258, b"key!").unwrap());
    let Packet::Startup(startup) = only(b"\0\0\0\x13\0\x03\0\x02user\0\0x\0y\0\0") else {
        panic!()
    };
    assert_eq!(startup.version, ProtocolVersion::V3_2);
    let parameters: Vec<_> = startup.parameters.collect();
    assert_eq!(parameters, [(&b"user"[..], &b""[..]), (b"x", b"y")]);
}

#[test]
fn truncated_packet_is_incomplete() {
    let packet = b"\0\0\0\x11\0\x03\0\0user\0al\0\0";
    for end in 0..packet.len() {
        assert!(matches!(Packet::split(&packet[..end], PACKET_BYTES_MAX), Ok(None)));
    }
    let (_, rest) = Packet::split(&packet.repeat(2), PACKET_BYTES_MAX)
        .map(|packet| packet.map(|(_, rest)| ((), rest.len())))
        .unwrap()
        .unwrap();
    assert_eq!(rest, packet.len());
}

#[test]
fn malformed_packets_are_refused() {
    for length in [i32::MIN, -1, 0, 4, 7, 10_001, i32::MAX] {
        let refused = Packet::split(&length.to_be_bytes(), PACKET_BYTES_MAX).map(drop);
        let bytes_max = PACKET_BYTES_MAX;
        assert_eq!(refused, Err(StartupPacketError::Length { length, bytes_max }));
    }
    for packet in [
        &b"\0\0\0\x08\0\x03\0\0"[..],               // no end of the parameters
        b"\0\0\0\x0e\0\x03\0\0user\0\0",            // a name without a value
        b"\0\0\0\x0b\0\x03\0\0\0\0\0",              // bytes after the end
        b"\0\0\0\x09\x04\xd2\x16\x2f\0",            // a TLS request with something in it
        b"\0\0\0\x0f\x04\xd2\x16\x2e\0\0\0\x01key", // a key too short
    ] {
        let refused = Packet::split(packet, PACKET_BYTES_MAX).map(drop);
        assert!(matches!(refused, Err(StartupPacketError::Malformed(_))), "{packet:?}");
    }
}

#[test]
fn protocol_3_2_allows_long_keys() {
    assert_eq!(CancelKey::new(1, b"abc"), None);
    assert_eq!(CancelKey::new(1, &[0; 257]), None);
    let key = CancelKey::new(-1, &[7; 256]).unwrap();
    let mut buf = Vec::new();
    cancel_request(&mut buf, &key);
    assert_eq!(buf.len(), 12 + 256);
    let Ok(Some((Packet::CancelRequest(read), b""))) = Packet::split(&buf, PACKET_BYTES_MAX) else {
        panic!()
    };
    assert_eq!(read, key);
    assert_eq!(format!("{key:?}"), "CancelKey { process_id: -1, .. }", "the secret is not shown");
}

#[test]
fn replies_and_bytes_match_both_ways() {
    for byte in 0..=255 {
        if let Some(reply) = EncryptionReply::from_byte(byte) {
            assert_eq!(reply.byte(), byte);
        }
    }
    assert_eq!(EncryptionReply::from_byte(b'N'), Some(EncryptionReply::Refused));
    assert_eq!(EncryptionReply::from_byte(0x15), None);
}

proptest! {
    #[test]
    fn parameters_round_trip(
        parameters in prop::collection::vec((prop::collection::vec(1..=255_u8, 1..9), testing::text()), 0..9),
        minor: u16,
    ) {
        let version = ProtocolVersion { major: 3, minor };
        let mut buf = Vec::new();
        let written = parameters.iter().map(|(name, value)| (&name[..], &value[..]));
        startup(&mut buf, version, written.clone()).unwrap();
        let Ok(Some((Packet::Startup(read), b""))) = Packet::split(&buf, PACKET_BYTES_MAX) else { panic!() };
        prop_assert_eq!(read.version, version);
        prop_assert!(read.parameters.eq(written));
    }

    #[test]
    fn arbitrary_bytes_are_packet_or_error(body in prop::collection::vec(0..3_u8, 4..40)) {
        let packet = [&(u32::try_from(body.len()).unwrap() + 4).to_be_bytes(), &body[..]].concat();
        if let Ok(Some((Packet::Startup(read), b""))) = Packet::split(&packet, PACKET_BYTES_MAX) {
            let mut again = Vec::new();
            startup(&mut again, read.version, read.parameters).unwrap();
            prop_assert_eq!(again, packet);
        }
    }
}

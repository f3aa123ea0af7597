//! Records (composite values) in PostgreSQL's text format.

use howdah_collect::RecordFields;

use super::Shape;

/// Fragments of records.
pub const WORDS: &[&[u8]] = &[
    b"(",
    b")",
    b",",
    b"\"",
    b"\"\"",
    b"\\\\",
    b"clock|",
    b"4711",
    b"=",
    b"(1,\"(2,\"\"a,b\"\",)\",)",
];

/// Rows as the activity query returns them.
pub fn seeds() -> Vec<Vec<u8>> {
    let records: [&[u8]; 4] = [
        b"4711",
        b"(4711,,,i,r,,,,,,1234567,,,,)",
        br#"(4711,"a b",,"idle in transaction",Client,,,3,-50,=,12,-99,"{7,8}",17,)"#,
        br#"(7,shop,,a,,,,1,5,=,2,,,,"(100,sales,""a """"b"""""",10.0.0.7,5000,""client backend"",f,UTF8)")"#,
    ];
    records.map(<[u8]>::to_vec).to_vec()
}

/// Checks that parsed fields survive being written as the server does and parsed again.
pub fn run(input: &[u8]) -> Shape {
    let fields: Vec<_> = RecordFields::new(input).collect();
    assert!(fields.len() <= input.len());
    if !fields.is_empty() {
        let written = written(fields.iter().map(|field| field.as_deref()));
        assert_eq!(RecordFields::new(&written).collect::<Vec<_>>(), fields);
    }
    let kinds: Vec<_> =
        fields.iter().take(16).map(|field| field.as_ref().map(|f| f.is_empty())).collect();
    Shape::of((fields.len().min(16), kinds))
}

fn written<'a>(fields: impl Iterator<Item = Option<&'a [u8]>>) -> Vec<u8> {
    let mut record = vec![b'('];
    for (at, field) in fields.enumerate() {
        record.extend((at > 0).then_some(b','));
        let Some(field) = field else { continue };
        record.push(b'"');
        for &byte in field {
            record.extend(matches!(byte, b'"' | b'\\').then_some(byte));
            record.push(byte);
        }
        record.push(b'"');
    }
    record.push(b')');
    record
}

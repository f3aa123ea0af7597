//! Describes events as lines of text, to make dialogues readable.

use howdah_session::{ClientSession, SessionError, SessionEvent};

/// All pending events, in order.
pub(crate) fn events(client: &mut ClientSession) -> Result<Vec<String>, SessionError> {
    let mut lines = Vec::new();
    while let Some(event) = client.poll_event()? {
        lines.push(describe(&event));
    }
    Ok(lines)
}

pub(crate) fn describe(event: &SessionEvent<'_>) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    match event {
        SessionEvent::ParameterDescription(types) => {
            format!("ParameterDescription {:?}", types.clone().collect::<Vec<_>>())
        }
        SessionEvent::RowDescription(fields) => {
            let names: Vec<_> = fields.clone().map(|field| text(field.name)).collect();
            format!("RowDescription {}", names.join(","))
        }
        SessionEvent::Row(row) => match row.cells() {
            None => format!("Row of {} bytes", row.body_bytes()),
            Some(cells) => {
                let cells: Vec<_> = cells.map(|cell| cell.map_or("NULL".into(), text)).collect();
                format!("Row {}", cells.join("|"))
            }
        },
        SessionEvent::CommandComplete(tag) => format!("CommandComplete {}", text(tag.as_bytes())),
        SessionEvent::CopyData(data) => match data.data() {
            None => format!("CopyData of {} bytes", data.body_bytes()),
            Some(data) => format!("CopyData {:?}", text(data)),
        },
        SessionEvent::FunctionResult(value) => format!("FunctionResult {:?}", value.map(text)),
        SessionEvent::Ready(status) => format!("Ready {status:?}"),
        SessionEvent::Error(error) => format!("Error {}", text(error.sqlstate())),
        SessionEvent::Notice(notice) => format!("Notice {}", text(notice.message())),
        SessionEvent::Notification(notification) => {
            format!("Notification {}={}", text(notification.channel), text(notification.payload))
        }
        SessionEvent::ParameterStatus { name, value } => {
            format!("ParameterStatus {}={}", text(name), text(value))
        }
        other => format!("{other:?}"),
    }
}

//! Events as lines of text, so that a dialogue can be read.

use howdah_session::{Client, Error, Event};

/// Every event that is there, in order.
pub(crate) fn events(client: &mut Client) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    while let Some(event) = client.poll_event()? {
        lines.push(describe(&event));
    }
    Ok(lines)
}

pub(crate) fn describe(event: &Event<'_>) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    match event {
        Event::ParameterDescription(types) => {
            format!("ParameterDescription {:?}", types.clone().collect::<Vec<_>>())
        }
        Event::RowDescription(fields) => {
            let names: Vec<_> = fields.clone().map(|field| text(field.name)).collect();
            format!("RowDescription {}", names.join(","))
        }
        Event::Row(row) => match row.cells() {
            None => format!("Row of {} bytes", row.body_bytes()),
            Some(cells) => {
                let cells: Vec<_> = cells.map(|cell| cell.map_or("NULL".into(), text)).collect();
                format!("Row {}", cells.join("|"))
            }
        },
        Event::CommandComplete(tag) => format!("CommandComplete {}", text(tag.as_bytes())),
        Event::CopyData(data) => match data.data() {
            None => format!("CopyData of {} bytes", data.body_bytes()),
            Some(data) => format!("CopyData {:?}", text(data)),
        },
        Event::FunctionResult(value) => format!("FunctionResult {:?}", value.map(text)),
        Event::Ready(status) => format!("Ready {status:?}"),
        Event::Error(error) => format!("Error {}", text(error.sqlstate())),
        Event::Notice(notice) => format!("Notice {}", text(notice.message())),
        Event::Notification(notification) => {
            format!("Notification {}={}", text(notification.channel), text(notification.payload))
        }
        Event::ParameterStatus { name, value } => {
            format!("ParameterStatus {}={}", text(name), text(value))
        }
        other => format!("{other:?}"),
    }
}

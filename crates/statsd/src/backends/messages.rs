//! Events and service checks as JSON documents.

use crate::{
    flush::{MessageContent, ReceivedMessage},
    js::JsValue,
};

/// Returns the document of an event or a service check. Texts that were not sent are `null`.
pub(super) fn document(message: &ReceivedMessage) -> JsValue {
    let kind = match &message.content {
        MessageContent::Event { .. } => "event",
        MessageContent::Check { .. } => "service_check",
    };
    let mut fields = vec![
        ("type", text(kind)),
        ("time", JsValue::Number(message.time as f64)),
        ("received", JsValue::Number(message.received_seconds())),
        ("host", text(&message.host)),
    ];
    match &message.content {
        MessageContent::Event {
            title,
            text: body,
            aggregation_key,
            priority,
            source_type,
            alert_type,
        } => fields.extend([
            ("title", text(title)),
            ("text", JsValue::Text(clean(body))),
            ("aggregation_key", text(aggregation_key)),
            ("priority", text(priority.as_str())),
            ("source_type", text(source_type)),
            ("alert_type", text(alert_type.as_str())),
        ]),
        MessageContent::Check { name, status, message } => fields.extend([
            ("name", text(name)),
            ("status", text(status.as_str())),
            ("message", text(message)),
        ]),
    }
    let tags = message.tags.iter().map(|(key, value)| (clean(key), JsValue::Text(clean(value))));
    fields.push(("tags", JsValue::Object(tags.collect())));
    JsValue::Object(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

fn text(text: &str) -> JsValue {
    if text.is_empty() { JsValue::Null } else { JsValue::Text(clean(text)) }
}

/// PostgreSQL cannot store a zero byte.
fn clean(text: &str) -> Box<str> {
    text.replace('\0', "\u{fffd}").into()
}

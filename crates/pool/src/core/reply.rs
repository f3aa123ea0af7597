//! What a server's message means for what it is owed.

use howdah_wire::{Backend, backend::TransactionStatus};

use crate::{owed::Request, server::Server};

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// It is for the client.
    Forward,
    /// It answers what the pooler asked.
    Swallow,
    /// It answers nothing that was asked.
    Unexpected,
}

/// Whether a kind is looked at beyond its header. These are short; all others may stream.
pub(super) fn needs_body(kind: Backend) -> bool {
    matches!(kind, Backend::ReadyForQuery | Backend::ParameterStatus | Backend::CommandComplete)
}

/// Counts a message off.
pub(super) fn handle(server: &mut Server, kind: Backend, body: &[u8]) -> Reply {
    let Some(front) = server.owed.front() else { return unasked(kind) };
    let swallow = front.swallow;
    let answered = match (kind, &front.request) {
        (Backend::DataRow | Backend::CopyData | Backend::CopyDone, _) => false,
        (Backend::NoticeResponse | Backend::NotificationResponse, _) => return Reply::Forward,
        (Backend::ParameterStatus, _) => false,
        (Backend::ReadyForQuery, Request::Query | Request::Function | Request::Sync) => {
            let Some(status) = body.first().and_then(|byte| TransactionStatus::from_byte(*byte))
            else {
                return Reply::Unexpected;
            };
            server.status = status;
            server.copying_in = false;
            true
        }
        (Backend::ErrorResponse, Request::Query | Request::Function | Request::Sync) => false,
        (Backend::ErrorResponse, _) => {
            server.copying_in = false;
            server.skipping = !server.owed.skip_to_sync();
            false
        }
        (Backend::CopyInResponse, Request::Query | Request::Execute) => {
            server.copying_in = !server.owed.drop_syncs_in_copy();
            false
        }
        (_, Request::Query) => false,
        (Backend::FunctionCallResponse, Request::Function) => false,
        (Backend::ParseComplete, Request::Parse)
        | (Backend::BindComplete, Request::Bind)
        | (Backend::CloseComplete, Request::Close)
        | (Backend::RowDescription | Backend::NoData, Request::Describe)
        | (
            Backend::CommandComplete | Backend::EmptyQueryResponse | Backend::PortalSuspended,
            Request::Execute,
        ) => true,
        (Backend::ParameterDescription, Request::Describe) => false,
        (Backend::CopyOutResponse | Backend::CopyBothResponse, Request::Execute) => false,
        _ => return Reply::Unexpected,
    };
    if answered {
        server.owed.pop();
    }
    if swallow { Reply::Swallow } else { Reply::Forward }
}

/// What a server may say without being asked.
fn unasked(kind: Backend) -> Reply {
    match kind {
        Backend::NoticeResponse
        | Backend::NotificationResponse
        | Backend::ParameterStatus
        | Backend::ErrorResponse => Reply::Forward,
        _ => Reply::Unexpected,
    }
}

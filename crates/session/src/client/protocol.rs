//! The state of a connection, except for its input buffer, and the effect of each message on that
//! state.

use std::fmt;

use howdah_wire::{
    Backend, Frame, Header,
    backend::{BackendMessage, ServerError, Severity, TransactionStatus},
    startup::CancelKey,
};

use super::{
    login::{Handshake, Login},
    pipeline::{Pipeline, RequestId},
};
use crate::{
    CopyData, ReceivedRow, SessionError, SessionEvent, buffers::TransmitBuffer,
    settings::ReportedParameters,
};

pub(super) struct Protocol {
    pub(super) state: ConnectionState,
    pub(super) output: TransmitBuffer,
    /// Encoded requests that were made before the login was complete.
    deferred: Vec<u8>,
    pub(super) pipeline: Pipeline,
    pub(super) answered: Option<RequestId>,
    pub(super) settings: ReportedParameters,
    pub(super) cancel_key: Option<CancelKey>,
    pub(super) transaction_status: TransactionStatus,
    pub(super) terminated: bool,
}

impl fmt::Debug for Protocol {
    /// Omits the deferred requests, which are user data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protocol")
            .field("state", &self.state)
            .field("transaction_status", &self.transaction_status)
            .field("pipeline", &self.pipeline)
            .field("output", &self.output)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// The state of the connection; see the diagram at [`super::ClientSession`].
#[derive(Debug)]
pub(super) enum ConnectionState {
    LoggingIn(Box<Handshake>),
    Open,
    Closed,
    Failed(SessionError),
}

impl Protocol {
    pub(super) fn new(login: Login, nonce: [u8; 18]) -> Self {
        let mut output = TransmitBuffer::default();
        let state = match login.startup(output.buffer()) {
            Ok(()) => ConnectionState::LoggingIn(Box::new(Handshake::new(login, nonce))),
            Err(error) => ConnectionState::Failed(error.into()),
        };
        Self {
            state,
            output,
            deferred: Vec::new(),
            pipeline: Pipeline::default(),
            answered: None,
            settings: ReportedParameters::default(),
            cancel_key: None,
            transaction_status: TransactionStatus::Idle,
            terminated: false,
        }
    }

    /// Returns the maximum body length to accept, in bytes. Until the login is complete, all
    /// messages have the limit of short ones.
    pub(super) fn body_bytes_max(&self, kind: Backend) -> u32 {
        match &self.state {
            ConnectionState::LoggingIn(_) => Backend::Authentication.body_bytes_max(),
            _ => kind.body_bytes_max(),
        }
    }

    /// Returns the buffer for new requests; `None` on a closed connection.
    pub(super) fn request_buffer(&mut self) -> Option<&mut Vec<u8>> {
        match self.state {
            ConnectionState::LoggingIn(_) => Some(&mut self.deferred),
            ConnectionState::Open => Some(self.output.buffer()),
            ConnectionState::Closed | ConnectionState::Failed(_) => None,
        }
    }

    /// Whether messages of this kind produce no event.
    pub(super) fn absorbs(kind: Backend) -> bool {
        matches!(
            kind,
            Backend::Authentication | Backend::BackendKeyData | Backend::NegotiateProtocolVersion
        )
    }

    /// Handles a message that produces no event.
    pub(super) fn absorb(&mut self, frame: Frame<'_>) -> Result<(), SessionError> {
        let message = BackendMessage::parse(frame)?;
        let ConnectionState::LoggingIn(handshake) = &mut self.state else {
            return Err(SessionError::Unexpected {
                message: message.kind(),
                state: "after the login",
            });
        };
        match message {
            BackendMessage::Authentication(request) => {
                handshake.handle_request(request, self.output.buffer())
            }
            BackendMessage::BackendKeyData(key) => {
                handshake.expect_awaiting_ready(Backend::BackendKeyData)?;
                self.cancel_key = Some(key);
                Ok(())
            }
            BackendMessage::NegotiateProtocolVersion(offer) if offer.newest.major != 3 => {
                Err(SessionError::ProtocolVersion { offered: offer.newest })
            }
            _ => Ok(()),
        }
    }

    /// Handles a discarded row or piece of COPY data.
    pub(super) fn discarded<'a>(
        &mut self,
        kind: Backend,
        header: Header,
    ) -> Result<SessionEvent<'a>, SessionError> {
        self.count_reply(kind)?;
        let body_bytes = header.body_bytes;
        Ok(match kind {
            Backend::DataRow => {
                SessionEvent::Row(ReceivedRow { body_bytes, cells: None, body: &[] })
            }
            _ => SessionEvent::CopyData(CopyData { body_bytes, data: None }),
        })
    }

    /// Handles a message that produces an event.
    pub(super) fn event<'a>(&mut self, frame: Frame<'a>) -> Result<SessionEvent<'a>, SessionError> {
        let message = BackendMessage::parse(frame)?;
        // These messages need not be a reply to the oldest request, or also change the state of the
        // connection. All others are replies, so `count_reply` checks that one was expected.
        match message {
            BackendMessage::ReadyForQuery(status) => return self.ready(status),
            BackendMessage::ErrorResponse(error) => return self.error(error),
            BackendMessage::NoticeResponse(notice) => return Ok(SessionEvent::Notice(notice)),
            BackendMessage::NotificationResponse(notification) => {
                return Ok(SessionEvent::Notification(notification));
            }
            BackendMessage::ParameterStatus { name, value } => {
                self.settings.set(name, value)?;
                return Ok(SessionEvent::ParameterStatus { name, value });
            }
            _ => self.count_reply(message.kind())?,
        }
        let body_bytes = || u32::try_from(frame.body.len()).expect("a body has a 32-bit length");
        Ok(match message {
            BackendMessage::BindComplete => SessionEvent::BindComplete,
            BackendMessage::CloseComplete => SessionEvent::CloseComplete,
            BackendMessage::CommandComplete(tag) => SessionEvent::CommandComplete(tag),
            BackendMessage::CopyBothResponse(_) => SessionEvent::CopyBoth,
            BackendMessage::CopyData(data) => {
                SessionEvent::CopyData(CopyData { body_bytes: body_bytes(), data: Some(data) })
            }
            BackendMessage::CopyDone => SessionEvent::CopyDone,
            BackendMessage::CopyInResponse(_) => SessionEvent::CopyIn,
            BackendMessage::CopyOutResponse(_) => SessionEvent::CopyOut,
            BackendMessage::DataRow(cells) => {
                let (body_bytes, body) = (body_bytes(), frame.body);
                SessionEvent::Row(ReceivedRow { body_bytes, cells: Some(cells), body })
            }
            BackendMessage::EmptyQueryResponse => SessionEvent::EmptyQuery,
            BackendMessage::FunctionCallResponse(value) => SessionEvent::FunctionResult(value),
            BackendMessage::NoData => SessionEvent::NoData,
            BackendMessage::ParameterDescription(types) => {
                SessionEvent::ParameterDescription(types)
            }
            BackendMessage::ParseComplete => SessionEvent::ParseComplete,
            BackendMessage::PortalSuspended => SessionEvent::PortalSuspended,
            BackendMessage::RowDescription(fields) => SessionEvent::RowDescription(fields),
            other => {
                return Err(SessionError::Unexpected {
                    message: other.kind(),
                    state: "after the login",
                });
            }
        })
    }

    /// Handles the end of the server's stream.
    pub(super) fn handle_eof(&mut self) -> Result<(), SessionError> {
        if self.terminated || matches!(self.state, ConnectionState::Closed) {
            self.state = ConnectionState::Closed;
            return Ok(());
        }
        self.state = ConnectionState::Failed(SessionError::ConnectionLost);
        Err(SessionError::ConnectionLost)
    }

    fn ready<'a>(&mut self, status: TransactionStatus) -> Result<SessionEvent<'a>, SessionError> {
        self.transaction_status = status;
        let ConnectionState::LoggingIn(handshake) = &self.state else {
            self.answered = self.pipeline.handle_reply(Backend::ReadyForQuery)?;
            return Ok(SessionEvent::Ready(status));
        };
        handshake.expect_awaiting_ready(Backend::ReadyForQuery)?;
        self.state = ConnectionState::Open;
        self.output.buffer().append(&mut self.deferred);
        self.deferred = Vec::new();
        Ok(SessionEvent::LoggedIn)
    }

    fn error<'a>(&mut self, error: ServerError<'a>) -> Result<SessionEvent<'a>, SessionError> {
        let refused = matches!(self.state, ConnectionState::LoggingIn(_));
        if !refused {
            self.answered = self.pipeline.handle_reply(Backend::ErrorResponse)?;
        }
        if refused || error.severity().is_some_and(Severity::closes_connection) {
            self.state = ConnectionState::Closed;
        }
        Ok(SessionEvent::Error(error))
    }

    /// Counts a message as part of the reply to the oldest request.
    fn count_reply(&mut self, kind: Backend) -> Result<(), SessionError> {
        if matches!(self.state, ConnectionState::LoggingIn(_)) {
            return Err(SessionError::Unexpected { message: kind, state: "during the login" });
        }
        self.answered = self.pipeline.handle_reply(kind)?;
        Ok(())
    }
}

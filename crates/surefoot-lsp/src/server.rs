//! The conversation with one client: who it is, which documents it has open, what it asks.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use lsp_server::{Connection, ErrorCode, Message, Notification, Request, Response};
use lsp_types::notification::{
    DidChangeConfiguration, DidChangeTextDocument, DidChangeWatchedFiles, DidCloseTextDocument,
    DidOpenTextDocument, DidSaveTextDocument, Exit, Notification as _, PublishDiagnostics,
    ShowMessage,
};
use lsp_types::request::{CodeActionRequest, HoverRequest, Request as _};
use lsp_types::{
    CodeActionKind, CodeActionOptions, CodeActionParams, CodeActionProviderCapability,
    DidChangeTextDocumentParams, DidCloseTextDocumentParams, DidOpenTextDocumentParams,
    DidSaveTextDocumentParams, HoverParams, HoverProviderCapability, InitializeParams,
    InitializeResult, MessageType, PositionEncodingKind, PublishDiagnosticsParams,
    ServerCapabilities, ServerInfo, ShowMessageParams, TextDocumentSyncCapability,
    TextDocumentSyncKind, TextDocumentSyncOptions, TextDocumentSyncSaveOptions, Uri,
};
use surefoot_torch::rules::{self, CheckRule};
use surefoot_torch::settings::{Overrides, Settings};
use surefoot_torch::source::Units;

use crate::ServeError;
use crate::actions::{self, FIX_ALL};
use crate::document::{Document, path};

/// Serves one client until it shuts the server down.
pub fn serve(connection: &Connection) -> Result<(), ServeError> {
    let (id, params) = connection.initialize_start()?;
    let params: InitializeParams = parameters("initialize", params)?;
    let units = units(&params);
    let result = serde_json::to_value(greeting(units))
        .map_err(|source| ServeError::Parameters { method: "initialize", source })?;
    connection.initialize_finish(id, result)?;
    let mut server =
        Server { connection, units, documents: HashMap::new(), settings: HashMap::new() };
    for message in &connection.receiver {
        match message {
            Message::Request(request) => {
                if connection.handle_shutdown(&request)? {
                    return Ok(());
                }
                let answer = server.answer(request);
                server.send(Message::Response(answer))?;
            }
            Message::Notification(note) if note.method == Exit::METHOD => break,
            Message::Notification(note) => server.note(note)?,
            Message::Response(_) => {}
        }
    }
    Err(ServeError::Closed)
}

/// How positions are counted: in bytes if the client can, else in UTF-16 as every client does.
fn units(params: &InitializeParams) -> Units {
    let general = params.capabilities.general.as_ref();
    let offered = general.and_then(|general| general.position_encodings.as_ref());
    match offered {
        Some(offered) if offered.contains(&PositionEncodingKind::UTF8) => Units::Utf8,
        _ => Units::Utf16,
    }
}

fn greeting(units: Units) -> InitializeResult {
    let sync = TextDocumentSyncOptions {
        open_close: Some(true),
        change: Some(TextDocumentSyncKind::FULL),
        save: Some(TextDocumentSyncSaveOptions::Supported(true)),
        ..TextDocumentSyncOptions::default()
    };
    let actions = CodeActionOptions {
        code_action_kinds: Some(vec![CodeActionKind::QUICKFIX, FIX_ALL]),
        ..CodeActionOptions::default()
    };
    InitializeResult {
        capabilities: ServerCapabilities {
            position_encoding: Some(match units {
                Units::Utf8 => PositionEncodingKind::UTF8,
                Units::Utf16 => PositionEncodingKind::UTF16,
            }),
            text_document_sync: Some(TextDocumentSyncCapability::Options(sync)),
            hover_provider: Some(HoverProviderCapability::Simple(true)),
            code_action_provider: Some(CodeActionProviderCapability::Options(actions)),
            ..ServerCapabilities::default()
        },
        server_info: Some(ServerInfo {
            name: "surefoot".to_owned(),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        }),
    }
}

fn parameters<T: serde::de::DeserializeOwned>(
    method: &'static str,
    value: serde_json::Value,
) -> Result<T, ServeError> {
    serde_json::from_value(value).map_err(|source| ServeError::Parameters { method, source })
}

struct Server<'c> {
    connection: &'c Connection,
    units: Units,
    documents: HashMap<String, Document>,
    /// By the folder that they were looked for from.
    settings: HashMap<PathBuf, Settings>,
}

impl Server<'_> {
    fn send(&self, message: Message) -> Result<(), ServeError> {
        self.connection.sender.send(message).map_err(|_| ServeError::Closed)
    }

    fn answer(&self, request: Request) -> Response {
        let id = request.id.clone();
        let result = match request.method.as_str() {
            CodeActionRequest::METHOD => self.code_actions(request.params),
            HoverRequest::METHOD => self.hover(request.params),
            method => {
                let code = ErrorCode::MethodNotFound as i32;
                return Response::new_err(id, code, format!("`{method}` is not offered"));
            }
        };
        match result {
            Ok(value) => Response::new_ok(id, value),
            Err(error) => Response::new_err(id, ErrorCode::InvalidParams as i32, error.to_string()),
        }
    }

    fn code_actions(
        &self,
        params: serde_json::Value,
    ) -> Result<serde_json::Value, serde_json::Error> {
        let params: CodeActionParams = serde_json::from_value(params)?;
        let document = self.documents.get(params.text_document.uri.as_str());
        let found =
            document.map(|document| actions::actions(document, params.range, &params.context));
        serde_json::to_value(found.unwrap_or_default())
    }

    fn hover(&self, params: serde_json::Value) -> Result<serde_json::Value, serde_json::Error> {
        let params: HoverParams = serde_json::from_value(params)?;
        let at = params.text_document_position_params;
        let document = self.documents.get(at.text_document.uri.as_str());
        serde_json::to_value(document.and_then(|document| actions::hover(document, at.position)))
    }

    fn note(&mut self, note: Notification) -> Result<(), ServeError> {
        match note.method.as_str() {
            DidOpenTextDocument::METHOD => {
                let params: DidOpenTextDocumentParams =
                    parameters(DidOpenTextDocument::METHOD, note.params)?;
                let opened = params.text_document;
                let is_python = opened.language_id == "python"
                    || path(&opened.uri)
                        .is_some_and(|path| path.extension().is_some_and(|e| e == "py"));
                if is_python {
                    self.check(opened.uri, opened.version, opened.text)?;
                }
            }
            DidChangeTextDocument::METHOD => {
                let mut params: DidChangeTextDocumentParams =
                    parameters(DidChangeTextDocument::METHOD, note.params)?;
                let changed = params.text_document;
                // The whole text comes with every change; the last one is what stands.
                if self.documents.contains_key(changed.uri.as_str())
                    && let Some(change) = params.content_changes.pop()
                {
                    self.check(changed.uri, changed.version, change.text)?;
                }
            }
            DidCloseTextDocument::METHOD => {
                let params: DidCloseTextDocumentParams =
                    parameters(DidCloseTextDocument::METHOD, note.params)?;
                let uri = params.text_document.uri;
                if self.documents.remove(uri.as_str()).is_some() {
                    self.publish(uri, None, Vec::new())?;
                }
            }
            DidSaveTextDocument::METHOD => {
                let params: DidSaveTextDocumentParams =
                    parameters(DidSaveTextDocument::METHOD, note.params)?;
                if params.text_document.uri.as_str().ends_with("/pyproject.toml") {
                    self.check_all_again()?;
                }
            }
            DidChangeWatchedFiles::METHOD | DidChangeConfiguration::METHOD => {
                self.check_all_again()?;
            }
            // Notifications that a server doesn't know are to be ignored.
            _ => {}
        }
        Ok(())
    }

    /// Checks a text and tells the client what was found.
    fn check(&mut self, uri: Uri, version: i32, text: String) -> Result<(), ServeError> {
        let rules = self.rules(&uri)?;
        let document = Document::new(uri.clone(), version, text, rules, self.units);
        let diagnostics = document.diagnostics();
        self.documents.insert(uri.as_str().to_owned(), document);
        self.publish(uri, Some(version), diagnostics)
    }

    /// The settings may have changed: reads them, and checks every document anew.
    fn check_all_again(&mut self) -> Result<(), ServeError> {
        self.settings.clear();
        for (_, document) in std::mem::take(&mut self.documents) {
            self.check(document.uri, document.version, document.text)?;
        }
        Ok(())
    }

    /// The rules for a document, by the settings of its project.
    fn rules(&mut self, uri: &Uri) -> Result<Vec<&'static CheckRule>, ServeError> {
        let Some(path) = path(uri) else { return Ok(rules::ALL.to_vec()) };
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        if !self.settings.contains_key(&folder) {
            let settings = match Settings::find(&folder, &Overrides::default()) {
                Ok(settings) => settings,
                Err(error) => {
                    self.show(format!("surefoot uses its default settings: {error}"))?;
                    Settings::defaults(&folder)
                }
            };
            self.settings.insert(folder.clone(), settings);
        }
        Ok(match self.settings.get(&folder) {
            Some(settings) if !settings.excludes(&path, false) => settings.rules_for(&path),
            _ => Vec::new(),
        })
    }

    fn publish(
        &self,
        uri: Uri,
        version: Option<i32>,
        diagnostics: Vec<lsp_types::Diagnostic>,
    ) -> Result<(), ServeError> {
        let params = PublishDiagnosticsParams { uri, diagnostics, version };
        let note = Notification::new(PublishDiagnostics::METHOD.to_owned(), params);
        self.send(Message::Notification(note))
    }

    fn show(&self, message: String) -> Result<(), ServeError> {
        let params = ShowMessageParams { typ: MessageType::WARNING, message };
        let note = Notification::new(ShowMessage::METHOD.to_owned(), params);
        self.send(Message::Notification(note))
    }
}

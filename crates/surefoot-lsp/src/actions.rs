//! What can be done about a place in a document: quick fixes, all fixes at once, silencing a finding,
//! and the explanation of a rule.

use lsp_types::{
    CodeAction, CodeActionContext, CodeActionKind, CodeActionOrCommand, DocumentChanges, Hover,
    HoverContents, MarkupContent, MarkupKind, OneOf, OptionalVersionedTextDocumentIdentifier,
    Position, Range, TextDocumentEdit, TextEdit, WorkspaceEdit,
};
use surefoot_torch::check::check;
use surefoot_torch::finding::Finding;
use surefoot_torch::fix::fix;
use surefoot_torch::rules;
use surefoot_torch::source::Source;

use crate::document::Document;

/// The kind of the action that applies all safe fixes, for editors that do so on save.
pub(crate) const FIX_ALL: CodeActionKind = CodeActionKind::new("source.fixAll.surefoot");

/// The actions for a stretch of a document.
pub(crate) fn actions(
    document: &Document,
    range: Range,
    context: &CodeActionContext,
) -> Vec<CodeActionOrCommand> {
    let Some(source) = document.source() else { return Vec::new() };
    let (start, end) = (document.offset(source, range.start), document.offset(source, range.end));
    let mut actions = Vec::new();
    if is_wanted(context, &CodeActionKind::QUICKFIX) {
        for finding in &document.findings {
            let touched = usize::from(finding.range.start()) <= end
                && start <= usize::from(finding.range.end());
            if touched {
                actions.extend(quick_fix(document, source, finding));
                actions.extend(silence(document, source, finding));
            }
        }
    }
    if is_wanted(context, &FIX_ALL) {
        actions.extend(fix_all(document, source));
    }
    actions.into_iter().map(CodeActionOrCommand::CodeAction).collect()
}

/// Whether the editor asks for actions of this kind: `source` asks for `source.fixAll` too.
fn is_wanted(context: &CodeActionContext, kind: &CodeActionKind) -> bool {
    let is_part = |asked: &CodeActionKind| {
        kind.as_str().strip_prefix(asked.as_str()).is_some_and(|rest| {
            rest.is_empty() || rest.starts_with('.') || asked.as_str().is_empty()
        })
    };
    context.only.as_ref().is_none_or(|kinds| kinds.iter().any(is_part))
}

fn quick_fix(document: &Document, source: &Source, finding: &Finding) -> Option<CodeAction> {
    let fix = finding.fix.as_ref()?;
    let edits = fix.edits.iter().map(|edit| document.text_edit(source, edit)).collect();
    Some(CodeAction {
        title: format!("{} ({})", fix.title, finding.code),
        kind: Some(CodeActionKind::QUICKFIX),
        diagnostics: Some(vec![document.diagnostic(source, finding)]),
        edit: Some(edit_of(document, edits)),
        is_preferred: Some(true),
        ..CodeAction::default()
    })
}

/// A `# noqa` at the end of the finding's last line, if that silences it and the text still parses.
fn silence(document: &Document, source: &Source, finding: &Finding) -> Option<CodeAction> {
    let end = usize::from(finding.range.end());
    let rest = &source.text[end..];
    let line_end = end + rest.find(['\n', '\r']).unwrap_or(rest.len());
    let comment = format!("  # noqa: {}", finding.code);
    let mut text = source.text.clone();
    text.insert_str(line_end, &comment);
    let silenced = Source::from_text(source.path.clone(), text).ok()?;
    let left = check(&silenced, &document.rules).ok()?;
    if left.iter().any(|other| other.code == finding.code && other.range == finding.range) {
        return None;
    }
    let edit = TextEdit { range: document.span(source, line_end, line_end), new_text: comment };
    Some(CodeAction {
        title: format!("Silence {} on this line", finding.code),
        kind: Some(CodeActionKind::QUICKFIX),
        diagnostics: Some(vec![document.diagnostic(source, finding)]),
        edit: Some(edit_of(document, vec![edit])),
        ..CodeAction::default()
    })
}

fn fix_all(document: &Document, source: &Source) -> Option<CodeAction> {
    let fixed = fix(source, &document.rules)?;
    let edit = TextEdit {
        range: document.span(source, 0, source.text.len()),
        new_text: fixed.source.text,
    };
    Some(CodeAction {
        title: "Apply all safe fixes of surefoot".to_owned(),
        kind: Some(FIX_ALL),
        edit: Some(edit_of(document, vec![edit])),
        ..CodeAction::default()
    })
}

/// Edits of this version of the document.
fn edit_of(document: &Document, edits: Vec<TextEdit>) -> WorkspaceEdit {
    let identifier = OptionalVersionedTextDocumentIdentifier {
        uri: document.uri.clone(),
        version: Some(document.version),
    };
    let edits = edits.into_iter().map(OneOf::Left).collect();
    let edit = TextDocumentEdit { text_document: identifier, edits };
    WorkspaceEdit {
        document_changes: Some(DocumentChanges::Edits(vec![edit])),
        ..WorkspaceEdit::default()
    }
}

/// What is found at a position, and the pages of the rules that found it.
pub(crate) fn hover(document: &Document, position: Position) -> Option<Hover> {
    let source = document.source()?;
    let at = document.offset(source, position);
    let here: Vec<&Finding> = document
        .findings
        .iter()
        .filter(|finding| {
            usize::from(finding.range.start()) <= at && at <= usize::from(finding.range.end())
        })
        .collect();
    let first = here.first()?;
    let pages: Vec<String> = here
        .iter()
        .map(|finding| {
            let page = rules::find(finding.code).map_or("", |rule| rule.page);
            let (severity, message) = (finding.severity.word(), &finding.message);
            format!("**{severity}**: {message}\n\n**help**: {}\n\n{page}", finding.help)
        })
        .collect();
    let contents = MarkupContent { kind: MarkupKind::Markdown, value: pages.join("\n---\n\n") };
    Some(Hover {
        contents: HoverContents::Markup(contents),
        range: Some(document.range(source, first)),
    })
}

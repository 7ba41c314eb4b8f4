//! `surefoot lsp`: the findings of `check` in an editor.

use clap::Args;

use crate::exit::{Exit, Failure};

/// Show the findings of `check` in an editor, as a language server over stdin and stdout
#[derive(Debug, Args)]
#[command(after_help = "\
Editors start it themselves. What it offers: findings as diagnostics while you type, quick fixes,
a fix for the whole file (source.fixAll.surefoot), and the explanation of a rule on hover.
Settings are read from [tool.surefoot] in pyproject.toml, as by `surefoot check`.

Neovim 0.11:
  vim.lsp.config.surefoot = { cmd = { 'surefoot', 'lsp' }, filetypes = { 'python' },
                              root_markers = { 'pyproject.toml', '.git' } }
  vim.lsp.enable('surefoot')

Helix, languages.toml:
  [language-server.surefoot]
  command = \"surefoot\"
  args = [\"lsp\"]

Exit codes: 0 the editor shut it down; 2 the editor left or did not follow the protocol.")]
pub(crate) struct Lsp {}

impl Lsp {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        match surefoot_lsp::serve_stdio() {
            Ok(()) => Ok(Exit::Done),
            Err(error) => Err(Failure::usage("the language server ended")
                .caused_by(&error)
                .hint("it is started by an editor: surefoot lsp --help shows how")),
        }
    }
}

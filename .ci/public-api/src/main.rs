//! Prints the public API of a crate, one item a line, from the JSON that rustdoc writes.

use std::process::ExitCode;

use public_api::Builder;

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: public-api-list FILE.json");
        return ExitCode::from(2);
    };
    // Implementations that the compiler derives for every type, such as Send and Any, say nothing.
    let api = Builder::from_rustdoc_json(&file)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    match api {
        Ok(api) => {
            api.items().for_each(|item| println!("{item}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", file.display());
            ExitCode::FAILURE
        }
    }
}

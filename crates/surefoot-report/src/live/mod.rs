//! The journal's page while a run goes on.

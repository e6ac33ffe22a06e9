//! Chains, rules and functions of a switch.

use axum::extract::State;
use protocol::name::SwitchName;
use protocol::{
    ChainAdd, ChainInfo, ChainRef, ChainRequest, ChainSpec, FunctionInfo, FunctionRequest, Page,
    Request, RuleAdd, RuleDel, RuleInfo, RuleRequest, RuleSpec, SteeringQuery, SwitchRef,
};
use serde::Deserialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Shared};
use crate::extract::{JsonBody, Parameters};

/// Operations on chains, rules and functions.
pub fn operations() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(chains, add_chain))
        .routes(routes!(delete_chain))
        .routes(routes!(rules, add_rules, delete_rules))
        .routes(routes!(delete_rule))
        .routes(routes!(functions))
}

/// Lists chains.
#[utoipa::path(
    get, path = "/v1/switches/{switch}/chains", tag = "switches",
    params(("switch" = String, Path), ("from" = Option<String>, Query)),
    responses((status = 200, body = Page<ChainInfo>))
)]
async fn chains(State(api): State<Shared>, Parameters(q): Parameters<SteeringQuery>) -> Answer {
    api.answer(Request::Chain(ChainRequest::List(q))).await
}

/// Creates a chain, or changes the one of this name.
#[utoipa::path(
    post, path = "/v1/switches/{switch}/chains", tag = "switches",
    params(("switch" = String, Path)),
    request_body = ChainSpec, responses((status = 204, description = "Created, or changed"))
)]
async fn add_chain(
    State(api): State<Shared>,
    Parameters(SwitchRef { switch }): Parameters<SwitchRef>,
    JsonBody(chain): JsonBody<ChainSpec>,
) -> Answer {
    api.answer(Request::Chain(ChainRequest::Add(ChainAdd { switch, chain }))).await
}

/// Deletes a chain that no port and no rule uses.
#[utoipa::path(
    delete, path = "/v1/switches/{switch}/chains/{chain}", tag = "switches",
    params(("switch" = String, Path), ("chain" = String, Path)),
    responses((status = 204, description = "Deleted"))
)]
async fn delete_chain(
    State(api): State<Shared>,
    Parameters(chain): Parameters<ChainRef>,
) -> Answer {
    api.answer(Request::Chain(ChainRequest::Del(chain))).await
}

/// Lists rules in the order in which they are tried.
#[utoipa::path(
    get, path = "/v1/switches/{switch}/rules", tag = "switches",
    params(("switch" = String, Path), ("from" = Option<String>, Query)),
    responses((status = 200, body = Page<RuleInfo>))
)]
async fn rules(State(api): State<Shared>, Parameters(q): Parameters<SteeringQuery>) -> Answer {
    api.answer(Request::Rule(RuleRequest::List(q))).await
}

/// Adds rules, all or none. One with the number of a rule that there is takes its place.
#[utoipa::path(
    post, path = "/v1/switches/{switch}/rules", tag = "switches",
    params(("switch" = String, Path)), request_body = Vec<RuleSpec>,
    responses((status = 200, body = Vec<u32>, description = "The numbers of the rules"))
)]
async fn add_rules(
    State(api): State<Shared>,
    Parameters(SwitchRef { switch }): Parameters<SwitchRef>,
    JsonBody(rules): JsonBody<Vec<RuleSpec>>,
) -> Answer {
    api.answer(Request::Rule(RuleRequest::Add(RuleAdd { switch, rules }))).await
}

/// Deletes all rules.
#[utoipa::path(
    delete, path = "/v1/switches/{switch}/rules", tag = "switches",
    params(("switch" = String, Path)), responses((status = 204, description = "Deleted"))
)]
async fn delete_rules(
    State(api): State<Shared>,
    Parameters(SwitchRef { switch }): Parameters<SwitchRef>,
) -> Answer {
    api.answer(Request::Rule(RuleRequest::Del(RuleDel { switch, rules: Vec::new() }))).await
}

/// Which rule.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleRef {
    switch: SwitchName,
    rule: u32,
}

/// Deletes a rule.
#[utoipa::path(
    delete, path = "/v1/switches/{switch}/rules/{rule}", tag = "switches",
    params(("switch" = String, Path), ("rule" = u32, Path)),
    responses((status = 204, description = "Deleted"))
)]
async fn delete_rule(
    State(api): State<Shared>,
    Parameters(RuleRef { switch, rule }): Parameters<RuleRef>,
) -> Answer {
    api.answer(Request::Rule(RuleRequest::Del(RuleDel { switch, rules: vec![rule] }))).await
}

/// Lists the instances of services.
#[utoipa::path(
    get, path = "/v1/switches/{switch}/functions", tag = "switches",
    params(("switch" = String, Path), ("from" = Option<String>, Query)),
    responses((status = 200, body = Page<FunctionInfo>))
)]
async fn functions(State(api): State<Shared>, Parameters(q): Parameters<SteeringQuery>) -> Answer {
    api.answer(Request::Function(FunctionRequest::List(q))).await
}

//! Switches, their forwarding databases, chains, rules and functions.

use axum::extract::State;
use protocol::{
    ChainInfo, ChainRequest, FdbAdd, FdbDel, FdbEntry, FdbList, FdbRequest, FunctionInfo,
    FunctionRequest, Page, PageFrom, Request, RuleInfo, RuleRequest, SteeringQuery, SwitchInfo,
    SwitchRef, SwitchRequest, SwitchSettings, SwitchSpec,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Shared};
use crate::extract::{JsonBody, Parameters};

/// The operations.
pub fn operations() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list, add))
        .routes(routes!(show, set, delete))
        .routes(routes!(fdb, add_to_fdb))
        .routes(routes!(delete_from_fdb))
        .routes(routes!(chains))
        .routes(routes!(rules))
        .routes(routes!(functions))
}

/// Lists switches.
#[utoipa::path(
    get, path = "/v1/switches", tag = "switches", operation_id = "list_switches",
    params(("from" = Option<String>, Query)),
    responses((status = 200, body = Page<SwitchInfo>))
)]
async fn list(State(api): State<Shared>, Parameters(page): Parameters<PageFrom>) -> Answer {
    api.answer(Request::Switch(SwitchRequest::List(page))).await
}

/// Creates a switch, which stays until it is deleted.
#[utoipa::path(
    post, path = "/v1/switches", tag = "switches", operation_id = "add_switch",
    request_body = SwitchSpec, responses((status = 201, description = "Created"))
)]
async fn add(State(api): State<Shared>, JsonBody(spec): JsonBody<SwitchSpec>) -> Answer {
    let place = format!("/v1/switches/{}", spec.switch);
    api.create(Request::Switch(SwitchRequest::Add(spec)), place).await
}

/// Shows a switch.
#[utoipa::path(
    get, path = "/v1/switches/{switch}", tag = "switches", operation_id = "show_switch",
    params(("switch" = String, Path)), responses((status = 200, body = SwitchInfo))
)]
async fn show(State(api): State<Shared>, Parameters(switch): Parameters<SwitchRef>) -> Answer {
    api.answer(Request::Switch(SwitchRequest::Show(switch))).await
}

/// Changes the settings that are given.
#[utoipa::path(
    patch, path = "/v1/switches/{switch}", tag = "switches", operation_id = "set_switch",
    params(("switch" = String, Path)),
    request_body = SwitchSettings, responses((status = 204, description = "Changed"))
)]
async fn set(
    State(api): State<Shared>,
    Parameters(SwitchRef { switch }): Parameters<SwitchRef>,
    JsonBody(settings): JsonBody<SwitchSettings>,
) -> Answer {
    api.answer(Request::Switch(SwitchRequest::Set(SwitchSpec { switch, settings }))).await
}

/// Deletes a switch with all its ports.
#[utoipa::path(
    delete, path = "/v1/switches/{switch}", tag = "switches", operation_id = "delete_switch",
    params(("switch" = String, Path)), responses((status = 204, description = "Deleted"))
)]
async fn delete(State(api): State<Shared>, Parameters(switch): Parameters<SwitchRef>) -> Answer {
    api.answer(Request::Switch(SwitchRequest::Del(switch))).await
}

/// Lists the forwarding database.
#[utoipa::path(
    get, path = "/v1/switches/{switch}/fdb", tag = "switches",
    params(("switch" = String, Path), ("from" = Option<String>, Query)),
    responses((status = 200, body = Page<FdbEntry>))
)]
async fn fdb(State(api): State<Shared>, Parameters(list): Parameters<FdbList>) -> Answer {
    api.answer(Request::Fdb(FdbRequest::List(list))).await
}

/// Adds a static entry; its port, which names the switch too, is a port of this switch.
#[utoipa::path(
    post, path = "/v1/switches/{switch}/fdb", tag = "switches",
    params(("switch" = String, Path)),
    request_body = FdbAdd, responses((status = 201, description = "Added"))
)]
async fn add_to_fdb(
    State(api): State<Shared>,
    Parameters(SwitchRef { switch }): Parameters<SwitchRef>,
    JsonBody(add): JsonBody<FdbAdd>,
) -> Answer {
    if *add.port.switch() != switch {
        let detail = format!("{} is no port of {switch}; name one that is", add.port);
        return Err(crate::problem::Problem::bad_request(detail));
    }
    let place = format!("/v1/switches/{switch}/fdb/{}?vlan={}", add.mac, add.vlan);
    api.create(Request::Fdb(FdbRequest::Add(add)), place).await
}

/// Deletes an entry.
#[utoipa::path(
    delete, path = "/v1/switches/{switch}/fdb/{mac}", tag = "switches",
    params(("switch" = String, Path), ("mac" = String, Path), ("vlan" = Option<u16>, Query)),
    responses((status = 204, description = "Deleted"))
)]
async fn delete_from_fdb(
    State(api): State<Shared>,
    Parameters(entry): Parameters<FdbDel>,
) -> Answer {
    api.answer(Request::Fdb(FdbRequest::Del(entry))).await
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

/// Lists rules in the order in which they are tried.
#[utoipa::path(
    get, path = "/v1/switches/{switch}/rules", tag = "switches",
    params(("switch" = String, Path), ("from" = Option<String>, Query)),
    responses((status = 200, body = Page<RuleInfo>))
)]
async fn rules(State(api): State<Shared>, Parameters(q): Parameters<SteeringQuery>) -> Answer {
    api.answer(Request::Rule(RuleRequest::List(q))).await
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

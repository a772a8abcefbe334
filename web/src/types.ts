/**
 * The API's JSON, under the names that the dashboard uses. `npm run types` generates api-types.ts.
 */
import type { NewWorkspace } from "./api-types";

export type {
  AccountView as Account,
  Action as AuditAction,
  ArchiveItem as Archive,
  ArchiveList,
  AuditEntryView as AuditEntry,
  AuditPage,
  CheckName,
  CheckView as Check,
  ConditionName,
  ConditionView as Condition,
  DetailedHomeView as DetailedHome,
  HomeView as Home,
  Images,
  ImageView as Image,
  LeaseList,
  LeaseView as Lease,
  ListedAccountView as ListedAccount,
  MadeToken,
  NewTokenBody as NewToken,
  NewUser,
  NewWorkspace,
  Operation,
  OverviewView as Overview,
  Phase,
  ProgressView as Progress,
  Recovery,
  RecoveryOption,
  Role,
  Scope,
  SessionView as Session,
  SignedIn,
  StandbyView as Standby,
  StatsView as Stats,
  Timeline,
  TokenList,
  TokenView as Token,
  UserChanges,
  UserPage,
  UserView as User,
  WorkspaceChanges,
  WorkspacePage,
  WorkspaceSummary as Workspace,
  WorkspaceView as DetailedWorkspace,
} from "./api-types";

/** The desired states that a user can request. PENDING only results from a cancel. */
export type RequestedState = NonNullable<NewWorkspace["desired_state"]>;

/** The filters of the audit log. An empty one matches every entry. */
export interface AuditQuery {
  action: string;
  actor: string;
}

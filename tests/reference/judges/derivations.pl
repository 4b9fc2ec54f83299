% Whole derivations as docs/semantics.md defines them, stage by stage, with a counter for each limit.
%
%   program(Facts, Rules, Queries, Others, Limits, Asked).
%
% is answered by one line of JSON: [predicates, constants, facts, encoded queries, an answer for each question]. Symbols are given as
% numbers that mean nothing (labels); their ids are found here. An atom is a(Predicate, First, Second), a variable v(Name), a rule
% r(Head, Body), Limits is limits(MaxDepth, MaxAtoms, MaxResolvents, ExcludeQuery) or default. Questions, N being the index of a query:
%
%   derive(N, shortest).               the derivation, with the policy's scores in 64ths
%   derive(N, Choices).                the derivation in which the policy chose these indices
%   step(N, Goal, Visited, Depth).     one step by `shortest`, from a goal of a derivation of the query
%   beam(N, K, Merge).                 the search with beam(K) by `shortest`; Merge is none or max
%
% The answer to beam is [Rows, Outcome, Limited, Max, Sum, NoisyOr], the last three being log-probabilities by kind of aggregation.
% A row is [Level, Place, Parent, LogProbability, Goal, Resolvents, Places].
%
% In answers an atom is [Predicate, First, Second], by id; variable number v is -1 - v. A resolvent is [Kind, OriginKind, Origin, Atoms].

:- use_module(library(apply)).
:- use_module(library(assoc)).
:- use_module(library(lists)).

main :-
    prompt(_, ''),
    repeat,
    read(Request),
    (   Request == end_of_file
    ->  !
    ;   (   answer(Request, Answer)
        ->  true
        ;   Answer = null
        ),
        write(Answer), nl,
        fail
    ).

answer(program(NamedFacts, NamedRules, NamedQueries, Others, NamedLimits, Asked), Answer) :-
    findall(Atom, (member(r(Head, Body), NamedRules), member(Atom, [Head|Body])), InRules),
    append([NamedFacts, InRules, NamedQueries], Atoms),
    findall(P, member(a(P, _, _), Atoms), PredicateUses),
    list_to_set(PredicateUses, Predicates),
    findall(C, (member(a(_, X, Y), Atoms), member(C, [X, Y]), integer(C)), ConstantUses),
    append(ConstantUses, Others, AllConstants),
    list_to_set(AllConstants, Constants),
    ids(Predicates, PredicateIds),
    ids(Constants, ConstantIds),
    Symbols = symbols(PredicateIds, ConstantIds),
    maplist(encode_alone(Symbols), NamedFacts, EncodedFacts),
    sort(EncodedFacts, Facts),
    maplist(encode_rule(Symbols), NamedRules, Rules),
    maplist(encode_alone(Symbols), NamedQueries, Queries),
    limits(NamedLimits, Limits),
    maplist(answer_one(Symbols, clauses(Rules, Facts), Limits, Queries), Asked, Answers),
    maplist(canonical_alone, Queries, Shown),
    Answer = [Predicates, Constants, Facts, Shown, Answers].

limits(default, limits(20, 6, 120, true)).
limits(limits(D, A, R, E), limits(D, A, R, E)).

answer_one(_, Clauses, Limits, Queries, derive(N, Policy), [Steps, Outcome, Limited, LogProbability]) :-
    nth0(N, Queries, Query),
    excluded(Limits, Query, Excluded),
    canonical([Query], Goal),
    derive(Policy, Clauses, Limits, Excluded, Goal, [], 0, Steps),
    last(Steps, LastStep),
    last(LastStep, Outcome),
    (   member([_, _, _, _, _, _, _, _, _, DroppedAtoms, DroppedResolvents|_], Steps),
        DroppedAtoms + DroppedResolvents > 0
    ->  Limited = 1
    ;   Limited = 0
    ),
    findall(Term, (member(Step, Steps), nth0(13, Step, Term)), Terms),
    sum_list(Terms, LogProbability).
answer_one(Symbols, Clauses, Limits, Queries, step(N, NamedGoal, NamedVisited, Depth), Step) :-
    nth0(N, Queries, Query),
    excluded(Limits, Query, Excluded),
    encode_goal(Symbols, NamedGoal, Goal),
    maplist(encode_goal(Symbols), NamedVisited, Visited),
    step(shortest, _, Clauses, Limits, Excluded, Goal, Visited, Depth, Step, _).

answer_one(_, Clauses, Limits, Queries, beam(N, K, Merge), [Rows, Outcome, Limited, Max, Sum, NoisyOr]) :-
    nth0(N, Queries, Query),
    excluded(Limits, Query, Excluded),
    canonical([Query], Goal),
    levels(search(K, Merge, Clauses, Limits, Excluded), 0, [path(0, -1, 0.0, Goal, [])], Rows, Drops, Ended),
    (   sum_list(Drops, 0)
    ->  Limited = 0
    ;   Limited = 1
    ),
    findall(L, member(end(1, L), Ended), Proofs),
    (   Proofs = [_|_]
    ->  Outcome = 1,
        max_list(Proofs, Max),
        foldl(add_probability, Proofs, 0.0, Total),
        foldl(multiply_complement, Proofs, 1.0, Complement),
        Sum is log(Total),
        NoisyOr is log(1 - Complement)
    ;   findall(L, member(end(_, L), Ended), Ends),
        max_list(Ends, Max),
        memberchk(end(Outcome, Max), Ended),
        Sum = Max,
        NoisyOr = Max
    ).

excluded(limits(_, _, _, true), Query, Query) :- ground(Query), !.
excluded(_, _, none).

derive(Policy, Clauses, Limits, Excluded, Goal, Visited, Depth, [Step|Steps]) :-
    step(Policy, PolicyLeft, Clauses, Limits, Excluded, Goal, Visited, Depth, Step, Next),
    last(Step, Outcome),
    (   Outcome =:= 0
    ->  Deeper is Depth + 1,
        derive(PolicyLeft, Clauses, Limits, Excluded, Next, [Goal|Visited], Deeper, Steps)
    ;   Steps = []
    ).

% A beam: all paths of a level, then the children of all of them, sorted; Ended holds the paths that end, by level and place.

levels(_, _, [], [], [], []) :- !.
levels(Search, Level, Beam, Rows, Drops, Ended) :-
    Search = search(K, Merge, _, limits(MaxDepth, _, _, _), _),
    maplist(expand(Search, Level), Beam, Steps),
    findall(child(L, Parent, I, Kind, Next, [Goal|Visited]),
            ( nth0(Order, Beam, path(Parent, _, LogProbability, Goal, Visited)),
              nth0(Order, Steps, Step),
              nth0(8, Step, Resolvents),
              nth0(11, Step, Scores),
              nth0(I, Resolvents, [Kind, _, _, Next]),
              exact_log_softmax(Scores, I, Term),
              L is LogProbability + Term ),
            Children),
    sort(1, @>=, Children, Sorted),
    first(K, Sorted, Kept, _),
    findall(Into, (nth0(Place, Kept, Child), into(Merge, Kept, Place, Child, Into)), Intos),
    Deeper is Level + 1,
    findall(end(Outcome, L),
            ( nth0(Place, Kept, child(L, _, _, Kind, _, _)),
              nth0(Place, Intos, Place),
              finish(Kind, Deeper, MaxDepth, Outcome),
              Outcome > 0 ),
            EndedHere),
    findall(path(Place, Parent, L, Next, Visited),
            ( nth0(Place, Kept, child(L, Parent, _, Kind, Next, Visited)),
              nth0(Place, Intos, Place),
              finish(Kind, Deeper, MaxDepth, Outcome),
              Outcome =:= 0 ),
            NextBeam),
    findall([Level, Place, Parent, LogProbability, Goal, Resolvents, Places],
            ( nth0(Order, Beam, path(Place, Parent, LogProbability, Goal, _)),
              nth0(Order, Steps, Step),
              nth0(8, Step, Resolvents),
              findall(P, (nth0(I, Resolvents, _), place_of(Kept, Intos, Place, I, P)), Places) ),
            RowsHere),
    findall(Dropped, (member(Step, Steps), (nth0(9, Step, Dropped) ; nth0(10, Step, Dropped))), DropsHere),
    levels(Search, Deeper, NextBeam, LaterRows, LaterDrops, LaterEnded),
    append(RowsHere, LaterRows, Rows),
    append(DropsHere, LaterDrops, Drops),
    append(EndedHere, LaterEnded, Ended).

expand(search(_, _, Clauses, Limits, Excluded), Depth, path(_, _, _, Goal, Visited), Step) :-
    step(shortest, _, Clauses, Limits, Excluded, Goal, Visited, Depth, Step, _).

into(max, Kept, _, child(_, _, _, 0, Goal, _), Into) :-
    !,
    nth0(Into, Kept, child(_, _, _, 0, Goal, _)),
    !.
into(_, _, Place, _, Place).

place_of(Kept, Intos, Parent, I, Shown) :-
    nth0(Place, Kept, child(_, Parent, I, _, _, _)),
    !,
    nth0(Place, Intos, Into),
    (   Into == Place
    ->  Shown = Place
    ;   Shown is -2 - Into
    ).
place_of(_, _, _, _, -1).

% The sum is exact, and rounded once.

exact_log_softmax([_], 0, 0.0) :- !.
exact_log_softmax(Scores, I, Term) :-
    max_list(Scores, Highest),
    nth0(I, Scores, Score),
    findall(Share, (member(Each, Scores), Share is rational(exp((Each - Highest) / 64.0))), Shares),
    sum_list(Shares, Total),
    Term is (Score - Highest) / 64.0 - log(float(Total)).

add_probability(L, Sum0, Sum) :-
    Sum is Sum0 + exp(L).

multiply_complement(L, Product0, Product) :-
    Product is Product0 * (1 - exp(L)).

% One step. The atoms of a resolvent are shown canonical from the first stage on.

step(Policy, PolicyLeft, clauses(Rules, Facts), Limits, Excluded, Goal, Visited, Depth, Step, Next) :-
    Limits = limits(MaxDepth, MaxAtoms, MaxResolvents, _),
    with_variables(Goal, [Selected|Rest]),
    findall([0, 1, I, Atoms], by_rule(Rules, Selected, Rest, I, Atoms), ByRules),
    findall([0, 2, I, Rest], by_fact(Facts, Excluded, Selected, I), ByFacts),
    maplist(nth0(2), ByRules, MatchedRules),
    maplist(nth0(2), ByFacts, MatchedFacts),
    append(ByRules, ByFacts, Resolved),
    maplist(prune(Facts, Excluded), Resolved, Pruned),
    maplist(rename, Resolved, ShownResolved),
    maplist(rename, Pruned, Renamed),
    exclude(is_visited([Goal|Visited]), Renamed, Unvisited),
    close_with(Unvisited, Closed),
    partition(is_short(MaxAtoms), Closed, Short, Long),
    first(MaxResolvents, Short, Kept, Beyond),
    length(Long, DroppedAtoms),
    length(Beyond, DroppedResolvents),
    (   Kept == []
    ->  Limited = [[2, 0, 0, []]]
    ;   Limited = Kept
    ),
    maplist(score, Limited, Scores),
    choose(Policy, Scores, Choice, PolicyLeft),
    Goal = [ShownSelected|_],
    Shared = [Goal, ShownSelected, MatchedRules, MatchedFacts, ShownResolved, Renamed, Unvisited, Closed, Limited, DroppedAtoms,
              DroppedResolvents, Scores, Choice],
    (   Choice >= 0,
        nth0(Choice, Limited, [Kind, _, _, Next])
    ->  log_softmax(Scores, Choice, LogProbability),
        Deeper is Depth + 1,
        finish(Kind, Deeper, MaxDepth, Outcome)
    ;   LogProbability = 0, Deeper = Depth, Outcome = -1
    ),
    append(Shared, [LogProbability, Deeper, Outcome], Step).

by_rule(Rules, Selected, Rest, I, Atoms) :-
    nth0(I, Rules, Rule),
    copy_term(Rule, Head-Body),
    Head = Selected,
    append(Body, Rest, Atoms).

by_fact(Facts, Excluded, Selected, I) :-
    nth0(I, Facts, Selected),
    Selected \== Excluded.

prune(Facts, Excluded, [_, OriginKind, Origin, Atoms], [Kind, OriginKind, Origin, Left]) :-
    exclude(is_given(Facts, Excluded), Atoms, Left),
    (   Left == []
    ->  Kind = 1
    ;   Kind = 0
    ).

is_given(Facts, Excluded, Atom) :-
    ground(Atom),
    Atom \== Excluded,
    memberchk(Atom, Facts).

rename([Kind, OriginKind, Origin, Atoms], [Kind, OriginKind, Origin, Canonical]) :-
    canonical(Atoms, Canonical).

is_visited(Visited, [_, _, _, Atoms]) :-
    memberchk(Atoms, Visited).

close_with(Resolvents, Closed) :-
    (   member([1, OriginKind, Origin, Atoms], Resolvents)
    ->  Closed = [[1, OriginKind, Origin, Atoms]]
    ;   Resolvents == []
    ->  Closed = [[2, 0, 0, []]]
    ;   Closed = Resolvents
    ).

is_short(MaxAtoms, [_, _, _, Atoms]) :-
    length(Atoms, Length),
    Length =< MaxAtoms.

first(Most, List, First, Beyond) :-
    length(List, Length),
    Num is min(Most, Length),
    length(First, Num),
    append(First, Beyond, List).

score([0, _, _, Atoms], Score) :-
    !,
    length(Atoms, NumAtoms),
    findall(T, (member([_, X, Y], Atoms), member(T, [X, Y]), T < 0), Variables),
    sort(Variables, Distinct),
    length(Distinct, NumVariables),
    Score is -(64 * NumAtoms + NumVariables).
score(_, 0).

choose(shortest, Scores, Choice, shortest) :-
    !,
    max_list(Scores, Highest),
    nth0(Choice, Scores, Highest),
    !.
choose([Choice|Choices], _, Choice, Choices).
choose([], _, -1, []).

log_softmax(Scores, Choice, LogProbability) :-
    nth0(Choice, Scores, Chosen),
    foldl(add_share(Chosen), Scores, 0.0, Total),
    LogProbability is -log(Total).

add_share(Chosen, Score, Sum0, Sum) :-
    Sum is Sum0 + exp((Score - Chosen) / 64.0).

finish(1, _, _, 1) :- !.
finish(2, _, _, 2) :- !.
finish(0, MaxDepth, MaxDepth, 3) :- !.
finish(0, _, _, 0).

% Symbols and variables.

ids(Labels, Ids) :-
    findall(Label-Id, nth0(Id, Labels, Label), Pairs),
    list_to_assoc(Pairs, Ids).

encode_alone(Symbols, Named, Atom) :-
    encode(Symbols, _, Named, Atom).

encode_rule(Symbols, r(NamedHead, NamedBody), Head-Body) :-
    maplist(encode(Symbols, _Scope), [NamedHead|NamedBody], [Head|Body]).

encode_goal(Symbols, Named, Goal) :-
    maplist(encode(Symbols, _Scope), Named, Atoms),
    canonical(Atoms, Goal).

encode(symbols(PredicateIds, ConstantIds), Scope, a(P, X, Y), [Predicate, First, Second]) :-
    get_assoc(P, PredicateIds, Predicate),
    encode_term(ConstantIds, Scope, X, First),
    encode_term(ConstantIds, Scope, Y, Second).

encode_term(_, Scope, v(Name), Variable) :-
    !,
    memberchk(Name-Variable, Scope).
encode_term(ConstantIds, _, Label, Constant) :-
    get_assoc(Label, ConstantIds, Constant).

canonical(Atoms, Canonical) :-
    copy_term(Atoms, Canonical),
    term_variables(Canonical, Variables),
    foldl(number, Variables, -1, _).

number(Number, Number, Next) :-
    Next is Number - 1.

canonical_alone(Atom, Canonical) :-
    canonical([Atom], [Canonical]).

with_variables(Goal, Atoms) :-
    maplist(with_variables(_Scope), Goal, Atoms).

with_variables(Scope, [P, X, Y], [P, A, B]) :-
    open_term(Scope, X, A),
    open_term(Scope, Y, B).

open_term(_, Term, Term) :- Term >= 0, !.
open_term(Scope, Number, Variable) :- memberchk(Number-Variable, Scope).

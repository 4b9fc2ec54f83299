% Whether a goal can be proved within so many steps, by any choice:
%
%   load(Clauses).                               Clauses: a list of c(Head, Body)    -> the number of clauses
%   prove(Query, Excluded, Depth, Inferences).   -> 1: it can, 0: it cannot, -1: not decided within so many inferences
%
% An atom is [Predicate, First, Second]. A step resolves the first atom with a clause. A ground atom that is a fact, and not excluded,
% is proved without a step, unless it is the query.

:- dynamic(clause_of/4).

main :-
    prompt(_, ''),
    repeat,
    read(Request),
    (   Request == end_of_file
    ->  !
    ;   answer(Request, Answer),
        print(Answer), nl, flush_output,
        fail
    ).

answer(load(Clauses), Count) :-
    retractall(clause_of(_, _, _, _)),
    forall(member(c([P, A, B], Body), Clauses), assertz(clause_of(P, A, B, Body))),
    aggregate_all(count, clause_of(_, _, _, _), Count).
answer(prove(Query, Excluded, Depth, Inferences), Decided) :-
    call_with_inference_limit(provable(Query, Excluded, Depth), Inferences, Result),
    !,
    (   Result == inference_limit_exceeded
    ->  Decided = -1
    ;   Decided = 1
    ).
answer(prove(_, _, _, _), 0).

provable(Query, Excluded, Depth) :-
    step(Query, [], Excluded, Depth).

step([P, A, B], Rest, Excluded, Depth) :-
    Depth > 0,
    Left is Depth - 1,
    clause_of(P, A, B, Body),
    \+ (Body == [], [P, A, B] == Excluded),
    append(Body, Rest, Goal),
    all_provable(Goal, Excluded, Left).

all_provable([], _, _).
all_provable([[P, A, B]|Rest], Excluded, Depth) :-
    (   ground([A, B]), [P, A, B] \== Excluded, clause_of(P, A, B, [])
    ->  all_provable(Rest, Excluded, Depth)
    ;   step([P, A, B], Rest, Excluded, Depth)
    ).
